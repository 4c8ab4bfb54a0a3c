"""Measures SAC's learner on images, as a share of what the machine's convolutions and matrix products allow.

    python -m benchmarks.pixels [--kind drq] [--size 64] [--batch 64] [--rounds 5]
    python -m benchmarks.pixels --gradients     # covey's gradient of a convolution beside XLA's own, in a compiled loop
    python -m benchmarks.peers --peers .venv-peers/bin/python --only pixels      # beside Stable-Baselines3

In every round, in turns: the whole training program (an environment that costs nothing, replay with stacked frames,
updates), the passes of the encoder that one update makes and nothing else, and a chain of 256 x 256 x 256 products. The
share of the convolution limit is the time of the passes over the time of an update.
"""

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covey
from benchmarks.learner import CHAIN, product_chain, seconds
from covey.envs.base import Outcome
from covey.nn.convolution import DIMENSIONS, convolve
from covey.nn.networks import apply, init
from covey.types import Array, Key

ACTION, CHANNELS, STACK = 6, 3, 3


@dataclass(frozen=True)
class Pictures:
    """An environment that costs nothing, whose observation is a picture of the action's first number."""

    size: int = 64

    @property
    def spec(self) -> covey.EnvSpec:
        image = covey.Part((self.size, self.size, CHANNELS), "uint8", STACK)
        return covey.EnvSpec(image, ACTION, 1000, (-1.0,) * ACTION, (1.0,) * ACTION)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.zeros(1), self._picture(jnp.zeros(ACTION))

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        return action[:1], Outcome(self._picture(action), jnp.sum(action), jnp.zeros((), bool))

    def descriptor(self, state: Array) -> Array:
        return jnp.zeros(0)

    def frame(self, state: Array) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    def _picture(self, action: Array) -> Array:
        grey = (127.0 * (1.0 + action[0])).astype(jnp.uint8)
        return jnp.broadcast_to(grey, (self.size, self.size, CHANNELS * STACK))


def learner(kind: str, size: int, batch: int, shared: bool = True) -> tuple[Any, int, covey.SAC]:
    """Returns a function that makes some updates, their number, and the agent."""
    networks = covey.Networks(image=covey.Image(kind=kind, shared=shared), actor_head="tanh_normal")
    env = Pictures(size)
    agent = covey.SAC(covey.SACConfig(networks=networks, batch_size=batch), env.spec)
    loop = covey.DeviceLoop(covey.make_trainer(agent, env, covey.SACHyper(), capacity=2_000))
    held = [loop.advance(loop.init(), 2, warmup=True)]
    blocks = 1

    def run() -> Any:
        held[0] = loop.advance(held[0], blocks)
        return held[0]

    return run, blocks * loop.trainer.block_steps, agent


def passes(agent: covey.SAC, batch: int, updates: int) -> Any:
    """Returns a function that makes the encoder's passes of some updates: three forward, one forward and backward."""
    module = agent.critics.encoder
    images = jax.random.randint(jax.random.key(0), (batch, *agent.spec.observation.parts["obs"].shown), 0, 256)
    images = images.astype(jnp.uint8)
    params = init(module, jax.random.key(1), images[0])

    def update(i: Array, params: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.sum(apply(module, p, images) ** 2))(params)
        found = sum(jnp.sum(apply(module, jax.tree.map(lambda x, s=s: x * s, params), images)) for s in (0.9, 1.1, 1.2))
        return jax.tree.map(lambda p, g: p - 1e-9 * (g + found), params, gradient)

    run = jax.jit(lambda p: jax.lax.fori_loop(0, updates, update, p))
    return lambda: run(params)


def gradients(size: int, batch: int) -> None:
    """Prints the seconds of a gradient of three layers of 32 channels in a compiled loop, and their ratio."""
    x = jax.random.normal(jax.random.key(0), (batch, size, size, 32))
    kernels = jax.random.normal(jax.random.key(1), (3, 3, 3, 32, 32)) * 0.05
    around = ((0, 0), (0, 0))

    def derived(x: Array, kernel: Array) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), around, dimension_numbers=DIMENSIONS)

    def loop(convolution: Any) -> Any:
        def loss(kernels: Array) -> Array:
            y = x
            for kernel in kernels:
                y = jax.nn.relu(convolution(y, kernel))
            return jnp.sum(y**2)

        run = jax.jit(lambda k: jax.lax.fori_loop(0, 3, lambda i, k: k - 1e-9 * jax.grad(loss)(k), k))
        return lambda: run(kernels)

    runs = {"covey": loop(lambda x, k: convolve(x, k, 1, around)), "derived": loop(derived)}
    times = {name: (seconds(run), seconds(run) / 3)[1] for name, run in runs.items()}
    print(f"one gradient: covey {times['covey']:.4f} s, XLA's own {times['derived']:.4f} s", end=", ")
    print(f"{times['derived'] / times['covey']:.0f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="drq", choices=("drq", "nature", "impala"))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    if options.gradients:
        gradients(options.size, options.batch)
        return
    learn, updates, agent = learner(options.kind, options.size, options.batch)
    encode, chain = passes(agent, options.batch, updates), product_chain()
    for each in (learn, encode, chain):
        seconds(each)
    rates: list[tuple[float, float, float]] = []
    for turn in range(options.rounds):
        rates.append((updates / seconds(learn), updates / seconds(encode), CHAIN * 2 * 256**3 / seconds(chain) / 1e9))
        print(f"round {turn + 1}: {rates[-1][0]:.2f} updates/s, passes alone {rates[-1][1]:.2f}", flush=True)
    share = statistics.median(a / b for a, b, _ in rates)
    middle = [statistics.median(column) for column in zip(*rates, strict=True)]
    print(
        f"{options.kind}, {options.size} x {options.size} x {CHANNELS * STACK}, batch {options.batch}: "
        f"{middle[0]:.2f} updates/s, {share:.2f} of the encoder's passes alone; products {middle[2]:.0f} GFLOP/s"
    )


if __name__ == "__main__":
    main()
