"""The training of one member: decide, step, store, learn. It knows no algorithm and no population.

Time has three units. A *row* is one step of each of the N environments. An *iteration* collects `unroll` rows and
learns from replay. A *block* is `iterations` iterations; all its random numbers and its start states are drawn at once,
because many small draws cost more than the work they serve. They follow from the member's key and the block's number
(`fold_in`), so it does not matter into which chunks of blocks a run is divided, or where it is resumed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Agent
from covey.envs.base import Env, HostEnv, check_env
from covey.errors import require, unknown
from covey.hyper.names import by_name, with_values
from covey.hyper.schedule import as_schedules, hyper_at, initial_hyper
from covey.observation import Obs
from covey.replay import Replay, ReplayState, Stored
from covey.training.collect import REWARDS, Rows, as_steps, draw_starts, new_world, step_row
from covey.training.member import Member, Tally, World, new_tally
from covey.types import Array, Key, Mode, Step

LOADING = 2**32 - 1
RESTARTING = 2**32 - 2
"""Reserved `fold_in` values for loading data and restarting environments; no block has these numbers."""
BLOCK_STEPS = 100
"""Environment steps in a block, roughly: enough to amortise its draws, few enough to stop almost anywhere."""
HOST_STEPS = 50
"""The same for host environments, where the acting policy is up to two blocks old."""
MOST_ROWS = 1_000
"""Rows of an iteration at most."""
ROUNDING = 1e-9
"""Relative difference up to which a float `updates_per_step` is taken for a fraction, such as 1/3."""


class Draws(NamedTuple):
    """The random numbers of a block, [iterations, ...]: keys to step, observe and update, and bits to sample replay."""

    step: Key
    observe: Key
    sample: Array
    update: Key


@dataclass(frozen=True)
class Trainer:
    """The training of one member. Static and hashable: two equal trainers share one compilation.

    Create it with `make_trainer`, and train with a `DeviceLoop` or a `HostLoop`.

    Args:
        agent: The agent.
        env: The environment: an `Env`, or a `HostEnv` for the host loop.
        schedules: The agent's Hyper with a `Schedule` in every field.
        replay: The layout of the replay.
        envs: Environments per member, N.
        unroll: Rows per iteration.
        updates: Calls of the agent's `update` per iteration.
        iterations: Iterations per block.
        metrics: Names of the agent's metrics.
        shared: Members learn from the replay of all members.
        warmup_mode: How the warm-up acts.

    Example:
        >>> trainer = covey.make_trainer(agent, env, covey.SACHyper(), envs=4)
        >>> trainer.block_steps
        100
    """

    agent: Agent[Any, Any, Any]
    env: Any
    schedules: Any
    replay: Replay
    envs: int
    unroll: int
    updates: int
    iterations: int
    metrics: tuple[str, ...]
    shared: bool = False
    warmup_mode: Mode = "random"

    @property
    def block_rows(self) -> int:
        """Rows per block."""
        return self.iterations * self.unroll

    @property
    def block_steps(self) -> int:
        """Environment steps per block and member."""
        return self.block_rows * self.envs

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the quantities in the tally: two of the incoming data, then the agent's metrics."""
        return ("observation", "reward", *self.metrics)

    @property
    def initial_hyper(self) -> Any:
        """The hyper-parameters before the first step, as Python floats."""
        return initial_hyper(self.schedules)

    def mode(self, warmup: bool) -> Mode:
        """Returns how the policy acts in collection."""
        return self.warmup_mode if warmup else "sample"

    def init(self, hyper: Any, key: Key) -> Member:
        """Creates a member."""
        key_agent, key_world, key_stream = jax.random.split(key, 3)
        agent = self.agent.init(hyper, key_agent)
        world = new_world(self.agent, self.env, agent, hyper, key_world, self.envs)
        return Member(agent, hyper, world, new_tally(len(self.quantities)), key_stream)

    def restart(self, member: Member, block: Array) -> Member:
        """Gives a member new environments."""
        key = jax.random.fold_in(jax.random.fold_in(member.key, RESTARTING), block)
        return member._replace(world=new_world(self.agent, self.env, member.agent, member.hyper, key, self.envs))

    def observe_loaded(self, member: Member, stored: Stored) -> Member:
        """Lets a member's agent observe records [T, N, ...] of replay once, as if it had collected them."""
        hyper = hyper_at(member.hyper, self.schedules, jnp.int32(0))
        records = self.replay.ordered_records(stored)
        rows = stored.data
        memory, obs = jax.tree.map(lambda x: x[0], (member.world.memory, member.world.obs))
        key = jax.random.fold_in(member.key, LOADING)
        made = jax.eval_shape(lambda: self.agent.act(member.agent, hyper, memory, obs, key, "sample").extras)
        own = {n: records.extras[n].reshape(*rows.shape[:2], *x.shape).astype(x.dtype) for n, x in made.items()}
        next_obs = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[-1:]]), records.obs)
        rollout = as_steps(records._replace(extras=records.extras | own), next_obs)
        collections = jax.tree.map(lambda x: x.reshape(-1, self.unroll, *x.shape[1:]), rollout)

        def observe(agent: Any, x: tuple[Step, Key]) -> tuple[Any, None]:
            return self.agent.observe(agent, hyper, *x), None

        keys = jax.random.split(key, rows.shape[0] // self.unroll)
        return member._replace(agent=jax.lax.scan(observe, member.agent, (collections, keys))[0])

    def block(
        self, member: Member, replay: ReplayState, number: Array, slot: Array | int, warmup: bool
    ) -> tuple[Member, ReplayState]:
        """Trains a member for one block.

        Args:
            member: The member.
            replay: The replay of all members, or of this one alone.
            number: The number of the block, from which its random numbers follow.
            slot: The member's slot in the replay.
            warmup: Learn nothing, and act as `warmup_mode` says. Static.

        Returns:
            The member and the replay.
        """
        key_starts, key_draws = self.block_keys(member.key, number)
        starts = draw_starts(self.env, key_starts, self.block_rows, self.envs)
        first = number * self.iterations
        mode = self.mode(warmup)

        def iterate(carry: tuple[Member, ReplayState], x: tuple[Draws, Array]) -> tuple[Any, None]:
            member, replay = carry
            draws, iteration = x
            member, rows = self._collect(member, iteration, draws, starts, mode)
            return self.learn(member, replay, rows, draws, iteration, slot, warmup), None

        numbers = first + jnp.arange(self.iterations, dtype=jnp.int32)
        (member, replay), _ = jax.lax.scan(iterate, (member, replay), (self.draws(key_draws), numbers))
        return member, replay

    def block_keys(self, key: Key, number: Array) -> tuple[Key, Key]:
        """Returns the keys of a block: for its start states, and for all its other random numbers."""
        key_starts, key_draws = jax.random.split(jax.random.fold_in(key, number))
        return key_starts, key_draws

    def hyper_at(self, hyper: Any, iteration: Array) -> Any:
        """Returns a member's hyper-parameters at an iteration, counted from the first of the run."""
        return hyper_at(hyper, self.schedules, iteration * self.unroll * self.envs)

    def learn(
        self,
        member: Member,
        replay: ReplayState,
        rows: Rows,
        draws: Draws,
        iteration: Array,
        slot: Array | int,
        warmup: bool,
    ) -> tuple[Member, ReplayState]:
        """Stores the rows of an iteration, lets the agent observe them and, after the warm-up, updates it."""
        records = rows.records
        hyper = self.hyper_at(member.hyper, iteration)
        replay = self.replay.add(replay, records, slot)
        agent = self.agent.observe(member.agent, hyper, as_steps(*rows), draws.observe)
        member = member._replace(agent=agent)
        incoming = jnp.stack([largest(records.obs), jnp.max(jnp.abs(records.reward))])
        metrics = jnp.zeros(len(self.metrics))
        if not warmup:
            member, metrics = self._update(member, replay, hyper, draws, iteration, slot)
        tally = _watch(member.tally, jnp.concatenate([incoming, metrics]), iteration, learned=not warmup)
        return member._replace(tally=tally), replay

    def _collect(self, member: Member, iteration: Array, draws: Draws, starts: Any, mode: Mode) -> tuple[Member, Rows]:
        """Collects the `unroll` rows of an iteration."""
        hyper = self.hyper_at(member.hyper, iteration)

        def row(carry: tuple[World, Tally], key: Key) -> tuple[tuple[World, Tally], Rows]:
            world, tally = carry
            world, rows, end = step_row(self.agent, self.env, member.agent, hyper, world, starts, key, mode)
            return (world, tally._replace(episodes=tally.episodes + end.finished)), rows

        (world, tally), rows = jax.lax.scan(row, (member.world, member.tally), draws.step)
        return member._replace(world=world, tally=tally), rows

    def _update(
        self, member: Member, replay: ReplayState, hyper: Any, draws: Draws, iteration: Array, slot: Array | int
    ) -> tuple[Member, Array]:
        """Calls the agent's `update` `updates` times, each with a new batch. Returns the mean of the metrics."""

        def update(agent: Any, x: tuple[Array, Key]) -> tuple[Any, Array]:
            bits, key = x
            if self.shared:
                pending = (iteration % self.iterations + 1) * self.unroll
                batch = self.replay.sample_all(replay, self.agent.plan, bits, pending, self.block_rows)
            else:
                batch = self.replay.sample_bits(replay, self.agent.plan, bits, slot)
            agent, metrics = self.agent.update(agent, hyper, batch, key)
            return agent, jnp.concatenate([metrics[name].reshape(-1) for name in sorted(metrics)])

        agent, metrics = jax.lax.scan(update, member.agent, (draws.sample, draws.update))
        return member._replace(agent=agent), jnp.mean(metrics, axis=0)

    def draws(self, key: Key) -> Draws:
        """Draws the random numbers of a block, all at once."""
        key_step, key_observe, key_sample, key_update = jax.random.split(key, 4)
        return Draws(
            step=jax.random.split(key_step, (self.iterations, self.unroll, 3, self.envs)),
            observe=jax.random.split(key_observe, self.iterations),
            sample=jax.random.bits(key_sample, (self.iterations, self.updates, self.agent.plan.batch_size), jnp.uint32),
            update=jax.random.split(key_update, (self.iterations, self.updates)),
        )


def largest(obs: Obs) -> Array:
    """Returns the largest absolute value of the float parts of observations; images of bytes can't be at fault."""
    floats = [x for x in jax.tree.leaves(obs) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in floats])) if floats else jnp.zeros(())


def _watch(tally: Tally, values: Array, iteration: Array, learned: bool) -> Tally:
    """Adds an iteration's quantities to the tally, and remembers the first that is not finite."""
    bad = ~jnp.isfinite(values)
    fault = jnp.stack([jnp.argmax(bad).astype(jnp.int32), iteration])
    return tally._replace(
        sums=tally.sums + values,
        learned=tally.learned + int(learned),
        fault=jnp.where((tally.fault[0] < 0) & jnp.any(bad), fault, tally.fault),
    )


def make_trainer(
    agent: Agent[Any, Any, Any],
    env: Env | HostEnv,
    hyper: Any,
    *,
    envs: int = 1,
    updates_per_step: float = 1.0,
    capacity: int = 1_000_000,
    shared: bool = False,
    warmup_mode: Mode = "random",
) -> Trainer:
    """Creates the training of one member.

    An iteration is the shortest that makes exactly `updates_per_step` updates per environment step.

    Args:
        agent: The agent, such as `covey.SAC(covey.SACConfig(), env.spec)`.
        env: The environment, from `covey.envs.make` or your own.
        hyper: The agent's Hyper; each value is a number or a `Schedule`.
        envs: Environments per member.
        updates_per_step: Gradient updates per environment step. `8 / envs` makes 8 per step of all environments.
        capacity: Environment steps that the replay of a member holds.
        shared: Members learn from the replay of all members.
        warmup_mode: How the warm-up acts: "random", uniformly; or "sample", with the policy.

    Returns:
        The trainer, for a `DeviceLoop` or, with a host environment, a `HostLoop`.

    Raises:
        CoveyError: If the numbers can't be met, or if the environment does not match its spec.

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> agent = covey.SAC(covey.SACConfig(batch_size=64), env.spec)
        >>> trainer = covey.make_trainer(agent, env, covey.SACHyper(actor_lr=1e-3), envs=4, capacity=100_000)
    """
    for name, value in (("envs", envs), ("capacity", capacity), ("updates_per_step", updates_per_step)):
        require(value > 0, f"`{name}` must be positive, not {value:g}.")
    unroll, updates = _iteration(updates_per_step, envs, agent.plan.updates)
    if not isinstance(env, HostEnv):
        check_env(env)
    schedules = as_schedules(hyper)
    metrics, extras = _shapes(agent, env, schedules)
    spec = env.spec
    rows = capacity // envs // unroll * unroll
    require(
        rows > 0,
        f"`capacity` {capacity} does not hold one collection of {unroll} steps of {envs} environments. "
        f"Raise it to at least {unroll * envs}.",
    )
    replay = Replay(rows, envs, spec.observation, spec.action_size, extras)
    # If start states are expensive, a block is long enough to need only one for each environment.
    block = HOST_STEPS if isinstance(env, HostEnv) else BLOCK_STEPS
    iterations = max(1, block // (unroll * envs), -(-(spec.steps_per_start - 1) // unroll))
    least = iterations * unroll + agent.plan.window + 1
    require(
        not shared or rows >= least,
        f"`capacity` {capacity} is too small for a shared replay (`pbt.replay` share): members draw from the blocks "
        f"before the current one, which writes {iterations * unroll * envs} steps. Raise it to at least "
        f"{least * envs}.",
    )
    return Trainer(agent, env, schedules, replay, envs, unroll, updates, iterations, metrics, shared, warmup_mode)


def _iteration(updates_per_step: float, envs: int, updates: int) -> tuple[int, int]:
    """Returns the fewest rows, and calls of `update` after them, that make exactly `updates_per_step` updates per step.

    Args:
        updates_per_step: Gradient updates per environment step.
        envs: Environments.
        updates: Gradient updates of one call.
    """
    asked = Fraction(updates_per_step) * envs / updates
    calls = asked.limit_denominator(MOST_ROWS)
    simpler = (asked.limit_denominator(rows) for rows in range(1, MOST_ROWS + 1))
    close = next((each for each in simpler if abs(each - asked) <= 0.01 * asked), Fraction(1, MOST_ROWS))
    require(
        abs(calls - asked) <= ROUNDING * asked,
        f"`updates_per_step` {updates_per_step:.10g} can't be met exactly within {MOST_ROWS:,} steps of each "
        f"environment ({envs:,} environments, {updates} updates at once). Close to it is {close * updates / envs}.",
    )
    return calls.denominator, calls.numerator


@lru_cache(maxsize=64)
def _shapes(
    agent: Agent[Any, Any, Any], env: Env | HostEnv, schedules: Any
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Returns the names of the agent's metrics, one for each bin of a histogram, and its extras with their sizes.

    Traces one update, but computes nothing.
    """

    def probe() -> tuple[Any, Any]:
        key = jax.random.key(0)
        hyper = initial_hyper(schedules)
        state = agent.init(hyper, key)
        obs = jax.tree.map(jnp.asarray, env.spec.observation.zeros())
        decision = agent.act(state, hyper, agent.begin(state, hyper, key), obs, key, "sample")
        stored = decision.extras | ({REWARDS: jnp.zeros(len(env.spec.rewards))} if env.spec.rewards else {})
        window = (agent.plan.batch_size, agent.plan.window)

        def many(x: Array) -> Array:
            return jnp.broadcast_to(x, window + x.shape)

        scalar = jnp.zeros(window)
        extras = {name: many(x.reshape(-1)) for name, x in stored.items()}
        obs = jax.tree.map(many, obs)
        batch = Step(obs, many(decision.action), scalar, scalar, obs, scalar, extras)
        return agent.update(state, hyper, batch, key)[1], stored

    metrics, extras = jax.eval_shape(probe)
    names = [f"{name}[{i}]" if x.shape else name for name, x in sorted(metrics.items()) for i in range(x.size)]
    return tuple(names), tuple(sorted((name, math.prod(x.shape)) for name, x in extras.items()))


def initial_values(trainer: Trainer, members: int, hypers: Any, seed: int | Key) -> tuple[Any, Key]:
    """Returns the hyper-parameters [P] and the random keys [P] that members are created from (see `Loop.init`)."""
    full = jax.tree.map(lambda value: np.full(members, value, np.float32), initial_hyper(trainer.schedules))
    if isinstance(hypers, Mapping):
        _check_names(trainer, hypers)
        full = with_values(full, {name: np.asarray(values, np.float32) for name, values in hypers.items()})
    elif hypers is not None:
        full = hypers
    for name, values in by_name(full).items():
        require(
            jnp.shape(values) == (members,),
            f"The hyper-parameter {name} needs one value for each of the {members} members, not an array of shape "
            f"{jnp.shape(values)}.",
        )
    if not isinstance(seed, int):
        return full, seed
    require(
        seed >= -(2**31) and seed + members <= 2**31,
        f"`seed` must lie between {-(2**31)} and {2**31 - members}, not {seed}.",
    )
    return full, _keys(seed + np.arange(members, dtype=np.int32))


@jax.jit
def _keys(seeds: Array) -> Key:
    return jax.vmap(jax.random.key)(seeds)


def _check_names(trainer: Trainer, names: Iterable[str]) -> None:
    """Raises a CoveyError for a name that is no hyper-parameter, or one that follows a schedule."""
    schedules = by_name(trainer.schedules)
    for name in names:
        if name not in schedules:
            raise unknown("hyper-parameter", name, schedules)
        require(
            schedules[name].kind == "constant",
            f"The hyper-parameter {name} follows the schedule {schedules[name]}, so members can't have values of their "
            "own. Leave it out of the search space, or give it a number.",
        )


def initial_shapes(trainer: Trainer, members: int) -> tuple[Any, Key]:
    """Returns the shapes of `initial_values`."""
    return jax.eval_shape(lambda: initial_values(trainer, members, None, 0))
