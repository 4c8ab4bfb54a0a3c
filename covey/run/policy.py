"""The policy of a run, ready to be evaluated, filmed or planned with. Builds no training program and no replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, envs
from covey.backend import request_acting_device, silence_xla
from covey.envs.described import Described
from covey.errors import require
from covey.evaluation import Episodes, HostEvaluator, TrainedPolicy, evaluate_members, measure, stream_key
from covey.export.source import Source
from covey.hyper.schedule import hyper_at, initial_hyper
from covey.run.config import LARGEST, RunConfig
from covey.storage.best import read_best, read_members
from covey.storage.folder import RunFolder
from covey.storage.layout import digest, not_finite, restore, unpack_best
from covey.training.precision import in_precision
from covey.training.sharding import Axis
from covey.types import EnvSpec, Key, Metrics

if TYPE_CHECKING:
    from covey.agents.skills.contract import SkillAgent

FINAL_EVALUATION, ANIMATION, SKILLS, GOALS = 2, 3, 4, 5
"""Random streams besides training's and that of evaluations (1)."""
SKILL_EPISODES = 8
"""Episodes of each shown skill in the measures of skills."""


@dataclass(frozen=True)
class PolicyProgram:
    """An agent and its environment, as a configuration describes them, and their evaluation."""

    config: RunConfig[Any, Any]
    agent: Any
    env: Any
    spec: EnvSpec
    """Of the environment itself, without what `Described` appends to its observations."""
    skill_agent: "SkillAgent[Any, Any, Any] | None" = None
    """The agent, if it learns skills."""
    host_evaluator: HostEvaluator | None = None
    """Evaluates on host environments."""

    @property
    def entry(self) -> agents.Entry:
        """The algorithm in the registry."""
        return agents.entry(self.config.algorithm)

    @property
    def on_host(self) -> bool:
        return self.host_evaluator is not None

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
            return jax.device_get(evaluate_members(self.agent, self.env, agents, hypers, key, episodes, axis, devices))

    def measure(self, agents: Any, hypers: Any, axis: Axis = "map", devices: int = 1) -> dict[str, np.ndarray]:
        """Measures the skills of every member, [P] each; empty for an agent without skills."""
        with silence_xla():
            return jax.device_get(self._measure(agents, hypers, axis, devices))

    def measures(self) -> set[str]:
        """Returns the names of the measures of skills. Computes nothing."""
        state, hyper = self.shapes()
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), (state, hyper))
        return set(jax.eval_shape(self._measure, *one))

    def _measure(self, agents: Any, hypers: Any, axis: Axis = "map", devices: int = 1) -> Metrics:
        if self.skill_agent is None:
            return {}
        key = self.stream(SKILLS)
        return measure(self.skill_agent, self.env, agents, hypers, key, SKILL_EPISODES, axis, devices)

    def shapes(self) -> tuple[Any, Any]:
        """Returns the shapes of one agent's state and its hyper-parameters. Computes nothing."""
        hyper = initial_hyper(self.config.schedules())

        def init() -> tuple[Any, Any]:
            values = jax.tree.map(jnp.float32, hyper)
            return self.agent.init(values, jax.random.key(0)), values

        return jax.eval_shape(init)

    def function(self, state: Any, hyper: Any, seed: int = 0) -> TrainedPolicy:
        """Returns a policy as a function from observation to action."""
        with silence_xla():
            return TrainedPolicy(self.agent, self.spec, state, hyper, seed)

    def close(self) -> None:
        """Closes evaluation environments."""
        if self.host_evaluator:
            self.host_evaluator.close()


def build_policy(config: RunConfig[Any, Any]) -> PolicyProgram:
    """Builds the agent and the environment of a resolved configuration."""
    entry = agents.entry(config.algorithm)
    env: Any = envs.make_from_config(config.env)
    spec = env.spec
    on_host = isinstance(env, envs.HostEnv)
    require(
        not (on_host and entry.is_skill_agent),
        f"{config.algorithm} learns skills in compiled environments only, and {config.env} runs on the host. Choose a "
        "compiled one (`covey envs` lists them), or another agent, such as sac.",
    )
    if on_host:
        request_acting_device()
    if entry.is_skill_agent:
        env = Described(env)  # type: ignore[arg-type]
    made = entry.make(config.agent, env.spec)
    agent = in_precision(made, config.precision)
    evaluator = HostEvaluator(agent, env, config.workers) if on_host else None
    return PolicyProgram(config, agent, env, spec, made if entry.is_skill_agent else None, evaluator)


class BestPolicy(NamedTuple):
    """The best policy of a run: its program, its state and its hyper-parameters."""

    program: PolicyProgram
    state: Any
    hyper: Any


def load_best(folder: RunFolder, program: PolicyProgram) -> BestPolicy:
    """Loads the best policy of a run folder."""
    arrays = read_best(folder)
    faulty = not_finite(arrays)
    require(not faulty, f"The best policy of {folder.path} holds NaN or infinite values: {''.join(faulty[:1])}.")
    with silence_xla():
        return BestPolicy(program, *unpack_best(*program.shapes(), arrays))


def load_member(folder: RunFolder, program: PolicyProgram, member: int) -> BestPolicy:
    """Loads the policy of one member from the newest checkpoint of a run folder."""
    members = program.config.members
    require(0 <= member < members, f"`member` must lie between 0 and {members - 1}, not {member}.")
    arrays, info = read_members(folder)
    state, hyper = program.shapes()
    count = arrays["members/key"].shape[0]
    require(member < count, f"The checkpoint holds members 0 to {count - 1}: several processes trained this run.")
    own = {name: x[member] for name, x in arrays.items() if name.startswith(("members/agent/", "members/hyper/"))}
    found = restore({"members": {"agent": state, "hyper": hyper}}, own)["members"]
    faulty = not_finite(own)
    require(not faulty, f"Member {member} holds NaN or infinite values: {''.join(faulty[:1])}.")
    now = hyper_at(found["hyper"], program.config.schedules(), jnp.int32(info["step"]))
    return BestPolicy(program, found["agent"], jax.tree.map(jnp.float32, now))


def as_source(
    policy: BestPolicy, explore: bool = False, skill: Sequence[float] | int | None = None, member: int | None = None
) -> Source:
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
    agent = program.skill_agent
    require(skill is None or agent is not None, f"{program.config.algorithm} learns no skills, so it takes no `skill`.")
    memory = None
    if agent is not None:
        chosen = _skill(np.asarray(agent.show_skills()), skill)
        facts = facts | {"skill": [float(x) for x in chosen]}
        memory = partial(agent.memory_for, jnp.asarray(chosen))
    return Source(program.agent, program.env, program.spec, state, hyper, facts, explore, memory)


def _skill(shown: np.ndarray, skill: Sequence[float] | int | None) -> np.ndarray:
    """Returns a skill [K] by its number among those that are shown, or as given."""
    if skill is None or isinstance(skill, int):
        number = skill or 0
        require(0 <= number < len(shown), f"`skill` must lie between 0 and {len(shown) - 1}, not {number}.")
        return shown[number]
    chosen = np.asarray(skill, np.float32)
    fits = chosen.shape == shown.shape[1:] and bool(np.isfinite(chosen).all())
    require(fits, f"A `skill` has {shown.shape[1]} finite numbers, or is a number below {len(shown)}; not {skill}.")
    return chosen
