"""The skills of a run: `films` maps and films them, `plans` reaches goals with them."""

from covey.run.skills.films import draw_skills as draw_skills
from covey.run.skills.films import film_skills as film_skills
from covey.run.skills.plans import Plan as Plan
from covey.run.skills.plans import can_plan as can_plan
from covey.run.skills.plans import draw_plans as draw_plans
from covey.run.skills.plans import goal_radius as goal_radius
from covey.run.skills.plans import make_planner as make_planner
from covey.run.skills.plans import plan_episode as plan_episode
from covey.run.skills.plans import random_plans as random_plans
