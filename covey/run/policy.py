"""The policy of a run, ready to be evaluated, filmed or planned with. Builds no training program and no replay."""

from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, envs
from covey.backend import request_acting_device, silence_xla
from covey.errors import require
from covey.evaluation import (
    Episodes,
    FixedSkill,
    HostEvaluator,
    HostSkills,
    OwnObservation,
    TrainedPolicy,
    chosen_skill,
    evaluate_members,
    measure,
    q_values,
    skill_paths,
    stream_key,
)
from covey.export.source import Source
from covey.hyper.names import by_name
from covey.hyper.schedule import hyper_at, initial_hyper
from covey.run.config import LARGEST, RunConfig
from covey.storage.best import read_best, read_members
from covey.storage.folder import RunFolder
from covey.storage.layout import AGENT, BEST_HYPER, HYPER, digest, not_finite, restore, unpack_best, with_hypers
from covey.training.precision import in_precision
from covey.training.sharding import Axis
from covey.types import EnvSpec, Key, Metrics

if TYPE_CHECKING:
    from covey.agents.skills.contract import Paths, SkillAgent
    from covey.envs.options import EnvOptions

FINAL_EVALUATION, ANIMATION, SKILLS, GOALS = 2, 3, 4, 5
"""Random streams besides training's and that of evaluations (1)."""
SKILL_EPISODES, HOST_SKILL_EPISODES = 8, 2
"""Episodes of each shown skill in the measures of skills, in compiled and in host environments, which are slower."""


@dataclass(frozen=True)
class PolicyProgram:
    """An agent and its environment, as a configuration describes them, and their evaluation."""

    config: RunConfig[Any, Any]
    agent: Any
    env: Any
    """The environment of evaluations, films and plans."""
    train_env: Any
    """The environment of training; by default the same."""
    spec: EnvSpec
    """Of the environment itself, without the parts that `Described` adds to its observations."""
    skill_agent: "SkillAgent[Any, Any, Any] | None" = None
    """The agent, if it learns skills."""
    host_evaluator: HostEvaluator | None = None
    """Evaluates on host environments."""
    host_skills: HostSkills | None = None
    """Runs the skills on host environments."""

    @property
    def entry(self) -> agents.Entry:
        """The algorithm in the registry."""
        return agents.entry(self.config.algorithm)

    @property
    def on_host(self) -> bool:
        """Whether training steps its environments on the host."""
        return isinstance(self.train_env, envs.HostEnv)

    def stream(self, number: int, seed: int = 0) -> Key:
        """Returns a random stream that training does not use, the same in every run: all seeds get the same starts."""
        require(-LARGEST <= seed <= LARGEST, f"`seed` must lie between {-LARGEST} and {LARGEST}, not {seed}.")
        return stream_key(number, seed)

    def evaluate(
        self, agents: Any, hypers: Any, key: Key, episodes: int, axis: Axis = "map", devices: int = 1
    ) -> Episodes:
        """Runs greedy episodes of every member [P]; the results are NumPy arrays."""
        with silence_xla():
            if self.host_evaluator:
                return self.host_evaluator(agents, hypers, key, episodes)
            mapping = (axis, devices, self.skill_agent)
            return jax.device_get(evaluate_members(self.agent, self.env, agents, hypers, key, episodes, *mapping))

    def measure(self, agents: Any, hypers: Any, axis: Axis = "map", devices: int = 1) -> dict[str, np.ndarray]:
        """Measures the skills of every member, [P] each; empty for an agent without skills."""
        with silence_xla():
            return jax.device_get(self._measure(agents, hypers, axis, devices))

    def measures(self) -> set[str]:
        """Returns the names of the measures of skills. Computes nothing."""
        state, hyper = self.shapes()
        if self.host_skills:
            return self.host_skills.measures(state, hyper)
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), (state, hyper))
        return set(jax.eval_shape(self._measure, *one))

    def _measure(self, agents: Any, hypers: Any, axis: Axis = "map", devices: int = 1) -> Metrics:
        if self.skill_agent is None:
            return {}
        key = self.stream(SKILLS)
        if self.host_skills:
            return self.host_skills.measure(agents, hypers, key, HOST_SKILL_EPISODES)
        return measure(self.skill_agent, self.env, agents, hypers, key, SKILL_EPISODES, axis, devices)

    def initial_hyper(self) -> Any:
        """Returns the hyper-parameters before the first step."""
        return initial_hyper(self.config.schedules())

    def shapes(self) -> tuple[Any, Any]:
        """Returns the shapes of one agent's state and its hyper-parameters. Computes nothing."""
        hyper = self.initial_hyper()

        def init() -> tuple[Any, Any]:
            values = jax.tree.map(jnp.float32, hyper)
            return self.agent.init(values, jax.random.key(0)), values

        return jax.eval_shape(init)

    def function(
        self, state: Any, hyper: Any, seed: int = 0, explore: bool = False, skill: Any = None
    ) -> TrainedPolicy:
        """Returns a policy as a function from observation to action."""
        with silence_xla():
            return TrainedPolicy(self.with_skill(skill), self.train_env.spec, state, hyper, seed, explore)

    def q_values(self, state: Any, hyper: Any, obs: Any, action: Any, skill: Any, target: bool) -> np.ndarray:
        """Returns the values of actions by every critic, [critics, ...]."""
        require(
            self.skill_agent is None or skill is not None,
            f"With {self.config.algorithm} the value of an action depends on the skill: give `skill`.",
        )
        with silence_xla():
            spec = self.train_env.spec
            return q_values(self.agent, self.with_skill(skill), spec, state, hyper, obs, action, target)

    def with_skill(self, skill: Any) -> Any:
        """Returns the agent or, if a skill is given, a policy that begins every episode with it."""
        if skill is None:
            return self.agent
        chosen = chosen_skill(self.skill_agent, skill)
        return FixedSkill(self.agent, self.skill_agent, chosen)  # type: ignore[arg-type]

    def skill_paths(self, state: Any, hyper: Any, key: Key, episodes: int) -> "Paths":
        """Runs some episodes of each shown skill of an agent that learns skills; the results are NumPy arrays."""
        assert self.skill_agent is not None
        with silence_xla():
            if self.host_skills:
                return jax.device_get(self.host_skills.paths(state, hyper, key, episodes))
            return jax.device_get(skill_paths(self.skill_agent, self.env, state, hyper, key, episodes))

    def close(self) -> None:
        """Closes evaluation environments."""
        for each in (self.host_evaluator, self.host_skills):
            if each:
                each.close()


def build_policy(config: RunConfig[Any, Any]) -> PolicyProgram:
    """Builds the agent and the environment of a resolved configuration."""
    entry = agents.entry(config.algorithm)
    train_env: Any = _made_env(config, config.env, config.env_options)
    env = _evaluation_env(config, train_env)
    spec = train_env.spec
    if isinstance(train_env, envs.HostEnv):
        request_acting_device()
    if entry.is_skill_agent:
        train_env, env = _described(train_env), _described(env)
    made = entry.make(config.agent, train_env.spec)
    agent = in_precision(made, config.precision)
    skill_agent = made if entry.is_skill_agent else None
    program = PolicyProgram(config, agent, env, train_env, spec, skill_agent)
    if not isinstance(env, envs.HostEnv):
        return program
    skills = HostSkills(made, env, config.workers) if skill_agent else None
    return replace(program, host_evaluator=_host_evaluator(program), host_skills=skills)


def _made_env(config: RunConfig[Any, Any], name: str, options: "EnvOptions") -> Any:
    """Makes an environment; an agent that learns skills gets the descriptor of a robot, if it is one of Gymnasium's."""
    if agents.entry(config.algorithm).is_skill_agent and not options.descriptor:
        options = replace(options, descriptor=envs.preset_sources(name))
    return envs.make_from_config(name, options)


def _described(env: Any) -> Any:
    """Returns an environment whose observation has its descriptor and the return so far."""
    return envs.DescribedHost(env) if isinstance(env, envs.HostEnv) else envs.Described(env)


def _host_evaluator(program: PolicyProgram) -> HostEvaluator:
    """Returns the evaluator of a program with a host environment."""
    env = program.env
    workers = program.config.workers
    if program.skill_agent or env.spec.descriptor is None:
        return HostEvaluator(program.agent, env, workers, program.skill_agent)
    # The episodes of an agent that learns no skills have a descriptor too; the agent does not see it.
    return HostEvaluator(OwnObservation(program.agent, env.spec.observation), envs.DescribedHost(env), workers)


def _evaluation_env(config: RunConfig[Any, Any], train_env: Any) -> Any:
    """Makes the environment of evaluations; an error if its spaces are not those of training."""
    if not (config.eval_env or config.eval_env_kwargs):
        return train_env
    name = config.eval_env or config.env
    env: Any = _made_env(config, name, config.eval_env_options)
    for size in ("observation", "action_size", "action_low", "action_high", "rewards"):
        here, there = getattr(env.spec, size), getattr(train_env.spec, size)
        require(
            here == there,
            f"`eval_env` must have the spaces of `env`, and its {size} is {here} ({name}) instead of {there} "
            f"({config.env}).",
        )
    here, there = (each.spec.descriptor.size if each.spec.descriptor else 0 for each in (env, train_env))
    require(
        here == there or not agents.entry(config.algorithm).is_skill_agent,
        f"`eval_env` must have the descriptor of `env`, and its size is {here} ({name}) instead of {there} "
        f"({config.env}).",
    )
    return env


class BestPolicy(NamedTuple):
    """The best policy of a run: its program, its state and its hyper-parameters."""

    program: PolicyProgram
    state: Any
    hyper: Any


def load_best(folder: RunFolder, program: PolicyProgram) -> BestPolicy:
    """Loads the best policy of a run folder."""
    return restore_best(folder, program, read_best(folder))


def restore_best(folder: RunFolder, program: PolicyProgram, arrays: dict[str, np.ndarray]) -> BestPolicy:
    """Returns the best policy of a run folder from its arrays."""
    faulty = not_finite(arrays)
    require(not faulty, f"The best policy of {folder.path} holds NaN or infinite values: {''.join(faulty[:1])}.")
    arrays = with_hypers(arrays, BEST_HYPER, by_name(program.initial_hyper()))
    with silence_xla():
        return BestPolicy(program, *unpack_best(*program.shapes(), arrays))


def load_member(folder: RunFolder, program: PolicyProgram, member: int) -> BestPolicy:
    """Loads the policy of one member from the newest checkpoint of a run folder."""
    members = program.config.members
    require(0 <= member < members, f"`member` must lie between 0 and {members - 1}, not {member}.")
    arrays, info = read_members(folder)
    count = arrays["members/key"].shape[0]
    require(member < count, f"The checkpoint holds members 0 to {count - 1}: several processes trained this run.")
    own = {name: x[member] for name, x in arrays.items() if name.startswith((AGENT, HYPER))}
    return restore_member(program, member, own, info["step"])


def restore_member(program: PolicyProgram, member: int, own: dict[str, np.ndarray], step: int) -> BestPolicy:
    """Returns the policy of a member from its arrays in a checkpoint of the training.

    Args:
        program: The program of the run.
        member: The member, for error messages.
        own: Its arrays `members/agent/...` and `members/hyper/...`, without the axis of members.
        step: The step of the checkpoint.
    """
    state, hyper = program.shapes()
    found = restore({"members": {"agent": state, "hyper": hyper}}, own)["members"]
    faulty = not_finite(own)
    require(not faulty, f"Member {member} holds NaN or infinite values: {''.join(faulty[:1])}.")
    now = hyper_at(found["hyper"], program.config.schedules(), jnp.int32(step))
    return BestPolicy(program, found["agent"], jax.tree.map(jnp.float32, now))


def as_source(policy: BestPolicy, explore: bool = False, skill: Any = None, member: int | None = None) -> Source:
    """Returns a policy as `covey.export` takes it.

    Args:
        policy: The policy.
        explore: The policy explores, as in training.
        skill: For a skill agent: the skill, or its number among those that are shown; None for the first.
        member: The member whose policy it is; None for the best.
    """
    program, state, hyper = policy
    facts: dict[str, Any] = {
        "covey": version("covey"),
        "algorithm": program.config.algorithm,
        "environment": program.config.env,
        "mode": "explore" if explore else "greedy",
        "member": member,
        "checkpoint": digest({"agent": state, "hyper": hyper}),
    }
    chosen = 0 if program.skill_agent and skill is None else skill
    acting = program.with_skill(chosen)
    if isinstance(acting, FixedSkill):
        facts["skill"] = list(acting.skill)
    return Source(acting, program.env, program.spec, state, hyper, facts, explore)
