"""Breaks runs on purpose, and asks the doctor what is wrong; and asks it about runs that are healthy.

    python -m benchmarks.doctor [--only NAME ...] [--out runs/doctor]

Every broken run has one cause, and the rules that name it. The doctor sees the run folder alone. The runs are small:
hidden layers of 32 units and a few thousand steps. The healthy ones are presets. Runs in `out` that are finished are
examined again, but not trained. `out/table.md` holds the table of docs/doctor.md.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.envs.base import Outcome
from covey.envs.builtin.point import Point
from covey.nn import critics, networks
from covey.types import Array, Descriptor, EnvSpec, Key

SMALL: dict[str, Any] = {"steps": 2000, "warmup": 500, "evaluations": 10, "episodes": 10, "hidden": [32, 32]}
SMALL |= {"preset": False, "lr": 1e-3}


class ChangedState(NamedTuple):
    """The state of the environment, and the steps of the episode."""

    inner: Any
    step: Array


@dataclass(frozen=True)
class Changed:
    """The task `point`, with something that is broken.

    Args:
        reward: Factor of the reward.
        obs: Factor of the observation.
        first: Factor of its first coordinate.
        ends: Steps after which an episode terminates; 0 for never.
        limit: Time limit.
        nan: Step at which the observation is NaN; 0 for never.
        shift: Number that is added to the reward.
    """

    reward: float = 1.0
    obs: float = 1.0
    first: float = 1.0
    ends: int = 0
    limit: int = 50
    nan: int = 0
    shift: float = 0.0

    @property
    def spec(self) -> EnvSpec:
        spec = Point().spec
        return EnvSpec(spec.obs_size, spec.action_size, self.limit, spec.action_low, spec.action_high, spec.descriptor)

    def reset(self, key: Key) -> tuple[ChangedState, Array]:
        state, obs = Point().reset(key)
        return ChangedState(state, jnp.zeros(())), self._seen(obs, jnp.zeros(()))

    def step(self, state: ChangedState, action: Array, key: Key) -> tuple[ChangedState, Outcome]:
        inner, outcome = Point().step(state.inner, action, key)
        step = state.step + 1.0
        ended = (step >= self.ends) if self.ends else outcome.terminated
        reward = self.reward * outcome.reward + self.shift
        return ChangedState(inner, step), Outcome(self._seen(outcome.obs, step), reward, ended)

    def _seen(self, obs: Array, step: Array) -> Array:
        scales = jnp.full(obs.shape, self.obs).at[0].multiply(self.first)
        return jnp.where((step >= self.nan) & (self.nan > 0), jnp.nan, obs * scales)

    def descriptor(self, state: ChangedState) -> Array:
        return Point().descriptor(state.inner)

    def frame(self, state: ChangedState) -> np.ndarray:
        return Point().frame(state.inner)


@dataclass(frozen=True)
class Shifted(Changed):
    """The task `point` with 2 less reward in each step."""

    shift: float = -2.0


@dataclass(frozen=True)
class Bandit:
    """One action, remembered for a step.

    Args:
        kind: `alternate` rewards the opposite of the last action; `more` the action itself; `optima` has a high and a
            low optimum; `noise` a reward that does not depend on the action; `rare` a reward in one of 1,000 steps.
    """

    kind: str = "alternate"

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(2, 1, 50, (-1.0,), (1.0,), Descriptor(("nothing",), (-1.0,), (1.0,)))

    def reset(self, key: Key) -> tuple[Array, Array]:
        state = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        a = action[0]
        rewards = {
            "alternate": -a * state[0],
            "more": a,
            "optima": jnp.exp(-((a - 0.7) ** 2) / 0.1) + 0.3 * jnp.exp(-((a + 0.6) ** 2) / 0.1),
            "noise": jax.random.normal(key),
            "rare": (jax.random.uniform(key) < 1e-3).astype(jnp.float32),
        }
        state = jnp.stack([a, jax.random.uniform(key, minval=-1.0, maxval=1.0)])
        return state, Outcome(state, rewards[self.kind], jnp.zeros((), bool))

    def descriptor(self, state: Array) -> Array:
        return jnp.zeros(1)

    def frame(self, state: Array) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)


@contextmanager
def changed_critics(change: Callable[[Any], Any]) -> Iterator[None]:
    """Changes the initial parameters of every ensemble of critics."""
    original = networks.init_ensemble

    def init_ensemble(*arguments: Any) -> Any:
        params, statistics = original(*arguments)
        return jax.tree.map(change, params), statistics

    critics.init_ensemble = init_ensemble
    try:
        yield
    finally:
        critics.init_ensemble = original


class Case(NamedTuple):
    """A run: what is broken, the rules that name it, and how it is trained. Healthy runs have no rules."""

    broken: str
    rules: tuple[str, ...]
    train: Callable[..., Any]
    env: Any = None
    """The environment again, if the training ends with an error."""


def train(name: str, /, **options: Any) -> Callable[..., Any]:
    """Returns a function that trains a small run on `point`."""
    values = SMALL | {"env": Point} | options
    return lambda out: covey.train(name, out=out, quiet=True, **values)  # type: ignore[arg-type]


def evolve(name: str, /, **options: Any) -> Callable[..., Any]:
    """Returns a function that trains a small population on `point`."""
    values = SMALL | {"env": Point, "members": 4, "population_axis": "map"} | options
    return lambda out: covey.evolve(name, out=out, quiet=True, **values)  # type: ignore[arg-type]


def with_critics(name: str, change: Callable[[Any], Any], /, **options: Any) -> Callable[..., Any]:
    """Returns a function that trains a run whose critics start changed."""

    def run(out: Path) -> Any:
        with changed_critics(change):
            return train(name, **options)(out)

    return run


def preset(agent: str, env: str, **options: Any) -> Callable[..., Any]:
    """Returns a function that trains a preset."""
    return lambda out: covey.train(agent, env=env, out=out, quiet=True, **options)  # type: ignore[arg-type]


FIXED = {"fixed_temperature": True}
INF = float("inf")
HUGE, NAN = Changed(reward=1e25), Changed(nan=40)
BROKEN = {
    "lr-high": Case("learning rates of 1", ("far_outside",), train("td3", lr=1.0)),
    "lr-low": Case("learning rates of 1e-9", ("far_outside",), train("sac", lr=1e-9)),
    "lr-zero": Case("learning rates of 0", ("never_changes",), train("td3", lr=0.0)),
    "lr-1e-5": Case("learning rates of 1e-5, for 1,500 updates", ("no_better_than_untrained",), train("td3", lr=1e-5)),
    "lr-0.08": Case(
        "learning rates of 0.08", ("units_are_dead", "actor_is_saturated", "units_explode"), train("td3", lr=0.08)
    ),
    "reward-1e6": Case("reward times 1e6", ("reward_scale",), train("td3", env=Changed(reward=1e6))),
    "reward-1e-6": Case("reward times 1e-6", ("reward_scale",), train("sac", env=Changed(reward=1e-6))),
    "reward-0": Case("reward always 0", ("rewards_are_constant",), train("sac", env=Changed(reward=0.0))),
    "reward-rare": Case(
        "reward in 1 of 1,000 steps", ("rewards_are_sparse",), train("td3", env=Bandit("rare"), steps=4000)
    ),
    "reward-noise": Case("reward independent of actions", ("never_changes",), train("td3", env=Bandit("noise"))),
    "reward-1e25": Case("reward times 1e25", ("loss_not_finite",), train("td3", env=HUGE), HUGE),
    "nan": Case("NaN in the observation", ("environment_not_finite",), train("td3", env=NAN), NAN),
    "obs-constant": Case(
        "one coordinate without variance", ("observations_are_constant",), train("td3", env=Changed(first=0.0))
    ),
    "obs-zero": Case("observation always 0", ("observations_are_constant",), train("td3", env=Changed(obs=0.0))),
    "obs-1e4": Case("observation times 1e4", ("observation_scale",), train("td3", env=Changed(obs=1e4))),
    "obs-unequal": Case("one coordinate times 1e-4", ("observation_scale",), train("td3", env=Changed(first=1e-4))),
    "no-exploration": Case(
        "no exploration noise", ("explores_nothing",), train("td3", hyper={"exploration_noise": 0.0})
    ),
    "hot": Case(
        "temperature fixed at 50",
        ("temperature_dominates",),
        train("sac", agent=FIXED, hyper={"temperature": 50.0}),
    ),
    "stuck": Case(
        "temperature is not learned",
        ("temperature_is_stuck",),
        train("sac", hyper={"temperature_lr": 0.0, "temperature": 0.5}),
    ),
    "cold": Case(
        "the target entropy of -2 is out of reach, temperature's rate 0.02",
        ("temperature_collapsed",),
        train(
            "sac",
            agent={"networks": {"log_std": [-1.0, 2.0]}},
            hyper={"target_entropy": -2.0, "temperature_lr": 0.02},
        ),
    ),
    "entropy": Case(
        "target entropy of 1.5 per dimension", ("entropy_is_impossible",), train("sac", hyper={"target_entropy": 1.5})
    ),
    "entropy-far": Case(
        "target entropy of -3.5 with a narrow range of deviations",
        ("entropy_is_not_met",),
        train("sac", agent={"networks": {"log_std": [-1.0, 2.0]}}, hyper={"target_entropy": -3.5}),
    ),
    "ends-at-once": Case("episodes end at once", ("episodes_end_at_once",), train("td3", env=Changed(ends=1))),
    "never-ends": Case(
        "a time limit of 100,000", ("episodes_never_end",), train("td3", env=Changed(limit=100_000), episodes=1)
    ),
    "warmup": Case(
        "a warm-up of 50 steps, batches of 512",
        ("warmup_is_short",),
        train("td3", warmup=50, agent={"batch_size": 512}),
    ),
    "twins": Case(
        "critics that start equal",
        ("critics_are_identical",),
        with_critics("td3", lambda x: jnp.broadcast_to(x[:1], x.shape)),
    ),
    "apart": Case(
        "one critic starts with weights times 10",
        ("critics_are_apart",),
        with_critics("td3", lambda x: x.at[0].multiply(10.0), hyper={"critic_lr": 1e-5}),
    ),
    "diverges": Case(
        "no target networks (tau 1), discount 0.9999, critics' rate 0.02",
        ("values_diverge", "values_are_far_from_returns"),
        train("td3", hyper={"tau": 1.0, "discount": 0.9999, "critic_lr": 0.02}),
    ),
    "gradient": Case(
        "smoothness with a weight of 1e9",
        ("gradients_are_extreme",),
        train("td3", agent={"smoothness": {"temporal": 1e9, "spatial": 1e9}}),
    ),
    "eval": Case(
        "evaluation in another environment",
        ("evaluation_is_below_training",),
        train("td3", eval_env=Shifted(), env=Changed()),
    ),
    "seeds": Case(
        "a task with two optima, and too few steps for some seeds",
        ("seeds_disagree",),
        train("td3", env=Bandit("optima"), seeds=4, steps=1400, evaluations=14),
    ),
    "saturated": Case("a reward for large actions alone", ("actor_is_saturated",), train("td3", env=Bandit("more"))),
    "jumps": Case(
        "a task whose best policy alternates", ("jumps_between_limits",), train("td3", env=Bandit("alternate"))
    ),
    "taac-repeats": Case(
        "advantage clipped below -50",
        ("repeats_never_or_always",),
        train("taac", agent={"advantage_clip": [-INF, -50.0]}),
    ),
    "taac-never": Case(
        "advantage clipped above 50", ("repeats_never_or_always",), train("taac", agent={"advantage_clip": [50.0, INF]})
    ),
    "diayn": Case("a descriptor that is always 0", ("skills_are_alike",), train("diayn", env=Bandit("noise"))),
    "pbt-edge": Case(
        "a range of learning rates that is far too low",
        ("winners_are_at_an_edge",),
        evolve("td3", space={"actor_lr": "1e-5:1.3e-5"}, steps=3000, pbt={"bottom": 0.5, "top": 0.25, "resample": 0.0}),
    ),
    "pbt-never": Case("PBT that replaces none", ("population_never_replaces",), evolve("td3", pbt={"bottom": 0.0})),
}
HEALTHY = {
    "td3-pendulum": Case("", (), preset("td3", "pendulum")),
    "td3-point": Case("", (), preset("td3", "point")),
    "td3-point-seeds": Case("", (), preset("td3", "point", seeds=3, steps=5000)),
    "sac-pendulum": Case("", (), preset("sac", "pendulum")),
    "sac-point": Case("", (), preset("sac", "point")),
    "taac-pendulum": Case("", (), preset("taac", "pendulum")),
    "taac-l-pendulum": Case("", (), preset("taac-l", "pendulum")),
    "diayn-point-free": Case("", (), preset("diayn", "point-free", steps=20_000)),
    "dads-point-free": Case("", (), preset("dads", "point-free", steps=12_000)),
    "evolve-td3-point": Case(
        "", (), lambda out: covey.evolve("td3", env="point", members=4, out=out, quiet=True, steps=6000)
    ),
}


def examine(case: Case, out: Path) -> Any:
    """Trains a run and asks the doctor. A training that ends with an error leaves a folder too."""
    try:
        return case.train(out).doctor()
    except covey.errors.CoveyError as error:
        print(f"    training ended: {str(error)[:100]}")
        return covey.load(out, env=case.env).doctor()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/doctor"))
    options = parser.parse_args()
    rows, right = [], {"broken": [], "healthy": []}
    for kind, cases in (("broken", BROKEN), ("healthy", HEALTHY)):
        for name, case in cases.items():
            if options.only and name not in options.only:
                continue
            start = time.process_time()
            found = examine(case, options.out / name).findings
            first = found[0].rule if found else "nothing"
            ok = first in case.rules if case.rules else not found
            right[kind].append(ok)
            seconds = time.process_time() - start
            others = ", ".join(each.rule for each in found[1:])
            print(f"{'ok   ' if ok else 'WRONG'} {name}: {first} [{others}] {seconds:.0f} s", flush=True)
            print("".join(f"        {each}\n" for each in found), end="", flush=True)
            rule = f"`{first}`: " if found else ""
            evidence = found[0].evidence if found else "nothing found"
            rows.append({"run": name, "broken": case.broken, "rule": rule, "first": evidence})
    head = "| run | what was broken | first finding |\n|---|---|---|\n"
    lines = (f"| {row['run']} | {row['broken'] or 'nothing'} | {row['rule']}{row['first']} |\n" for row in rows)
    (options.out / "table.md").write_text(head + "".join(lines))
    for kind, found in right.items():
        print(f"{kind}: {sum(found)} of {len(found)}")


if __name__ == "__main__":
    main()
