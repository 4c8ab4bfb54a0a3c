"""A configuration made concrete: agent, environment, compiled loop, and the moments at which a run does something."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, envs
from covey.errors import require
from covey.run.cache import hushed
from covey.run.config import RunConfig
from covey.training.device import DeviceLoop, choose_axis
from covey.training.evaluate import Episodes, evaluate
from covey.training.member import Population
from covey.training.precision import in_precision
from covey.training.schedule import initial
from covey.training.trainer import make_trainer
from covey.types import Key

LOGS_PER_EVALUATION = 5
EVALUATION, FINAL_EVALUATION, ANIMATION = 1, 2, 3
"""Random streams beside the training's own."""
STREAMS = 0x5EED_C0DE
"""Their root, far from the seeds that people choose."""


class Program(NamedTuple):
    """What a run is made of. `warmup` and `total` count blocks; `evaluations` and `logs` are block numbers."""

    config: RunConfig[Any, Any]
    agent: Any
    env: envs.Env
    loop: DeviceLoop
    warmup: int
    total: int
    evaluations: tuple[int, ...]
    logs: tuple[int, ...]

    @property
    def block_steps(self) -> int:
        return self.loop.trainer.block_steps

    @property
    def updates_per_block(self) -> int:
        trainer = self.loop.trainer
        return trainer.iterations * trainer.updates * self.agent.plan.updates

    def stream(self, number: int, seed: int = 0) -> Key:
        """A random stream that training does not use, the same in every run: seeds are judged on the same starts."""
        return jax.random.fold_in(jax.random.key(STREAMS + seed), number)

    def init(self) -> Population:
        """The members before the first step: member i from the seed + i."""
        with hushed():
            return self.loop.init(*self._seeds())

    def template(self) -> Population:
        """The shapes of the population, with nothing computed."""
        return jax.eval_shape(self.loop.init, *self._seeds())

    def evaluate(self, agent_states: Any, hypers: Any, key: Key, episodes: int) -> Episodes:
        """Greedy episodes of every member, on the host."""
        with hushed():
            return jax.device_get(evaluate(self.agent, self.env, agent_states, hypers, key, episodes))

    def _seeds(self) -> tuple[Any, Key]:
        members = self.config.seeds
        hyper = initial(self.loop.trainer.schedules)
        hypers = jax.tree.map(lambda value: jnp.full(members, value, jnp.float32), hyper)
        return hypers, jax.vmap(jax.random.key)(self.config.seed + jnp.arange(members))


def build(config: RunConfig[Any, Any]) -> Program:
    """The program of a resolved configuration; an error where it can't be run."""
    config.check()
    env = envs.make(config.env)
    agent = in_precision(agents.entry(config.algorithm).make(config.agent, env.spec), config.precision)
    trainer = make_trainer(
        agent,
        env,
        config.schedules(),
        envs=config.envs,
        updates_per_step=config.updates_per_step,
        capacity=config.capacity,
    )
    warmup, total = (math.ceil(steps / trainer.block_steps) for steps in (config.warmup, config.steps))
    require(
        warmup < total,
        f"--steps {config.steps} is over before the warm-up of {config.warmup} steps is: both are rounded up to "
        f"blocks of {trainer.block_steps} steps. Raise --steps to at least {(warmup + 1) * trainer.block_steps}.",
    )
    trainer.replay.check(agent.plan, trainer.unroll, warmup * trainer.iterations * trainer.unroll)
    _check_memory(config.seeds * trainer.replay.rows * trainer.replay.streams * trainer.replay.width * 4)
    axis = choose_axis(trainer, config.seeds) if config.population_axis == "auto" else config.population_axis
    loop = DeviceLoop(trainer, config.seeds, axis)
    evaluations = _points(total, config.evaluations)
    return Program(
        config, agent, env, loop, warmup, total, evaluations, _points(total, config.evaluations * LOGS_PER_EVALUATION)
    )


def _points(total: int, number: int) -> tuple[int, ...]:
    """`number` evenly spaced blocks, the last one `total`; fewer where there are not so many."""
    return tuple(sorted({math.ceil(k * total / number) for k in range(1, number + 1)}))


def _check_memory(replay_bytes: int) -> None:
    stats = jax.devices()[0].memory_stats()
    on_device = stats and stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    free = on_device or _free_memory()
    require(
        replay_bytes < 0.9 * free,
        f"The replay would need {replay_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. "
        "Lower --capacity, or train fewer --seeds at once.",
    )


def _free_memory() -> float:
    """Bytes of memory that can be had, as Linux tells them; elsewhere no limit is known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return np.inf
    return next((int(x.split()[1]) * 1024.0 for x in lines if x.startswith("MemAvailable:")), np.inf)
