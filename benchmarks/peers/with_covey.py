"""covey in the comparison: its learner on an environment that costs nothing, its host loop, its generations."""

import itertools
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.costs import ROWS, writing
from benchmarks.host import course, trainer
from benchmarks.learner import CHAIN, learner, product_chain
from benchmarks.noise import Noise
from benchmarks.peers.work import (
    ACTION,
    BRAX_ENVS,
    BRAX_ITERATIONS,
    CAPACITY,
    MEMBERS,
    OBS,
    STEPS,
    Work,
    serve,
)
from benchmarks.pixels import learner as pixel_learner
from covey import agents, envs
from covey.agents.td3 import TD3, TD3_SPACE, TD3Config, TD3Hyper
from covey.backend import request_acting_device, use_cache
from covey.population.exchange import exchange
from covey.population.pbt import PBT
from covey.replay import Replay
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.precision import Precision
from covey.training.trainer import make_trainer


def limit() -> Work:
    """Matrix products of 256 x 256 x 256, which limit every learner."""
    chain = product_chain()
    return Work(lambda: jax.block_until_ready(chain()), CHAIN)


def learning(name: str, members: int = 1, options: dict[str, Any] | None = None, precision: str = "float32") -> Work:
    if members > 1:
        jax.config.update("jax_num_cpu_devices", 2)
    run, updates = learner(name, members, "map", options, precision, devices=2 if members > 1 else 1)
    return Work(lambda: jax.block_until_ready(run()), updates)


def dads() -> Work:
    """Five discrete skills, as in QDax by default, and a descriptor of two numbers outside of the observation."""
    return learning("dads", options={"skills": {"kind": "discrete", "number": 5}})


def generation(replay: str) -> Work:
    """One exchange that replaces two of eight members; with `copy` also their replay data, as QDax does."""
    env = Noise()
    agent = TD3(TD3Config(), env.spec)
    loop = DeviceLoop(make_trainer(agent, env, TD3Hyper(), capacity=CAPACITY), MEMBERS, "map", jax.local_device_count())
    held = [loop.init()]
    scores = np.tile(np.arange(MEMBERS, dtype=np.float64)[:, None], 20)
    generations = itertools.count()
    pbt = PBT(replay=replay)  # type: ignore[arg-type]

    def run() -> None:
        population, _ = exchange(pbt, loop, held[0], scores, TD3_SPACE, generation=next(generations))
        held[0] = jax.block_until_ready(population)

    return Work(run, 1)


def pixels() -> Work:
    """The encoders of Stable-Baselines3's CnnPolicy: Nature's, one for the actor and one for the critics.

    covey's one shared encoder makes one pass less; separate ones would give each critic its own.
    """
    run, updates, _ = pixel_learner("nature", 64, 64)
    return Work(lambda: jax.block_until_ready(run()), updates)


def insert(capacity: int) -> Work:
    replay = Replay(capacity, 1, OBS, ACTION)
    write, held = writing(replay), [replay.init(1)]

    def run() -> None:
        held[0] = jax.block_until_ready(write(held[0]))

    return Work(run, ROWS)


def halfcheetah(agent: str, precision: Precision = "float32") -> Work:
    request_acting_device()
    made = trainer(agent, envs.make("gymnasium:HalfCheetah-v5"), precision=precision)
    go = course(HostLoop(made, 1, "map"), STEPS // made.block_steps)
    return Work(go, STEPS // made.block_steps * made.block_steps)


def brax() -> Work:
    env, entry = envs.make("brax:halfcheetah@spring"), agents.entry("td3")
    agent = entry.make(entry.config(), env.spec)  # type: ignore[arg-type]
    made = make_trainer(agent, env, entry.hyper(), envs=BRAX_ENVS, capacity=CAPACITY)
    steps = BRAX_ENVS * BRAX_ITERATIONS
    blocks = max(1, round(steps / made.block_steps))
    return Work(course(DeviceLoop(made, 1, "map"), blocks), blocks * made.block_steps)


if __name__ == "__main__":
    use_cache()
    serve(
        {
            "pixels": pixels,
            "limit": limit,
            "td3": lambda: learning("td3"),
            "sac": lambda: learning("sac"),
            "td3-bfloat16": lambda: learning("td3", precision="bfloat16"),
            "sac-bfloat16": lambda: learning("sac", precision="bfloat16"),
            "dads": dads,
            "td3-8": lambda: learning("td3", MEMBERS),
            "sac-8": lambda: learning("sac", MEMBERS),
            "generation": lambda: generation("copy"),
            "generation-keep": lambda: generation("keep"),
            "halfcheetah": lambda: halfcheetah("td3"),
            "halfcheetah-sac": lambda: halfcheetah("sac"),
            "halfcheetah-bfloat16": lambda: halfcheetah("td3", "bfloat16"),
            "brax": brax,
        }
        | {f"insert-{rows}": partial(insert, rows) for rows in (10_000, 100_000, 1_000_000)}
    )
