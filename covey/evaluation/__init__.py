"""Greedy rollouts, their statistics, and trained policies as functions."""

from covey.evaluation.evaluate import EVALUATION, current_hypers, evaluate, evaluate_members, stream_key
from covey.evaluation.host import HostEvaluator, OwnObservation
from covey.evaluation.host_skills import HostSkills, host_plan_paths
from covey.evaluation.policy import FixedSkill, TrainedPolicy, chosen_skill, q_values
from covey.evaluation.record import GIF_FRAMES, frame_interval, record
from covey.evaluation.rollout import Episode, Episodes
from covey.evaluation.skills import measure, plan_paths, policy_paths, skill_paths
from covey.evaluation.stats import Interval, mean_interval
from covey.evaluation.summary import Evaluation, html_table

__all__ = [
    "EVALUATION",
    "GIF_FRAMES",
    "Episode",
    "Episodes",
    "Evaluation",
    "FixedSkill",
    "HostEvaluator",
    "HostSkills",
    "Interval",
    "OwnObservation",
    "TrainedPolicy",
    "chosen_skill",
    "current_hypers",
    "evaluate",
    "evaluate_members",
    "frame_interval",
    "host_plan_paths",
    "html_table",
    "mean_interval",
    "measure",
    "plan_paths",
    "policy_paths",
    "q_values",
    "record",
    "skill_paths",
    "stream_key",
]
