"""An environment and policies whose observations are images and dictionaries."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents
from covey.agent import Decision
from covey.envs.base import Outcome
from covey.export.source import Source
from covey.observation import Observation, Part
from covey.run.config_text import from_json
from covey.types import EnvSpec

CAMERA, SPEED, PRIVILEGED = Part((12, 10, 3), "uint8"), Part((2,)), Part((4,))
FORMS: dict[str, Any] = {
    "image": CAMERA,
    "frames": Part((12, 10, 1), "uint8", stack=3),
    "pixels": Part((12, 10, 3)),
    "parts": {"camera": CAMERA, "speed": SPEED},
    "privileged": {"camera": CAMERA, "privileged": PRIVILEGED, "speed": SPEED},
    "one of two": {"obs": SPEED, "privileged": PRIVILEGED},
    "large": {"camera": Part((36, 36, 1), "uint8", stack=2), "privileged": PRIVILEGED, "speed": SPEED},
    "odd names": {"action": CAMERA, "v0": SPEED, "front/left": SPEED, "Front left": SPEED, "memory.0": PRIVILEGED},
}


@dataclass(frozen=True)
class Dot:
    """A dot moves on a plane. Every part of the observation is drawn from its position."""

    form: str = "image"

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(FORMS[self.form], 2, 40, (-1.0, 0.0), (1.0, 5.0))

    def reset(self, key: Any) -> tuple[Any, Any]:
        x = jax.random.uniform(key, (2,), minval=-1.0)
        return x, self.observe(x)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Outcome]:
        x = jnp.clip(state + 0.1 * action + 0.1 * jax.random.normal(key, (2,)), -1.0, 1.0)
        return x, Outcome(self.observe(x), -jnp.sum(x**2), jnp.zeros((), bool))

    def observe(self, x: Any) -> Any:
        def draw(shape: tuple[int, ...]) -> Any:
            at = jnp.arange(float(np.prod(shape))).reshape(shape) / 7.0
            return jnp.sin(at * (1.5 + x[0])) * jnp.cos(at / 5.0 + 3.0 * x[1])

        form: Observation = self.spec.observation
        drawn = {name: draw(part.shown) for name, part in form.named}
        as_bytes = {name: jnp.round(127.5 + 127.5 * each).astype(jnp.uint8) for name, each in drawn.items()}
        return form.of_names({n: as_bytes[n] if p.dtype == "uint8" else drawn[n] for n, p in form.named})

    def descriptor(self, state: Any) -> Any:
        return jnp.zeros(0)

    def frame(self, state: Any) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class Eye:
    """A policy with a convolution for each image, and a dense layer. With memory, it also sees what it saw before."""

    form: str
    remembers: bool = False

    @property
    def observation(self) -> Observation:
        return Observation.of(FORMS[self.form])

    def init(self, key: Any) -> dict[str, Any]:
        state = {}
        for i, (name, part) in enumerate(self.observation.named):
            kernel = (3, 3, part.shown[-1], 5) if part.is_image else (part.size, 5)
            state[name] = jax.random.normal(jax.random.fold_in(key, i), kernel) / np.sqrt(np.prod(kernel[:-1]))
        seen = {"obs": self.observation.zeros()} if self.observation.is_array else self.observation.zeros()
        size = self.features(state, jax.tree.map(jnp.asarray, seen)).size + 5 * self.remembers
        return state | {"head": jax.random.normal(key, (size, 2)) / np.sqrt(size)}

    def features(self, state: Any, parts: dict[str, Any]) -> Any:
        found = []
        for name, part in self.observation.named:
            if name == "privileged":
                continue
            x = parts[name].astype(jnp.float32) / (255.0 if part.dtype == "uint8" else 1.0)
            if part.is_image:
                convolved = convolve(x[None], state[name])[0]
                x = jax.lax.reduce_window(jax.nn.relu(convolved), -jnp.inf, jax.lax.max, (3, 3, 1), (2, 2, 1), "SAME")
            else:
                x = jnp.tanh(x @ state[name])
            found.append(x.ravel())
        return jnp.concatenate(found)

    def begin(self, state: Any, hyper: Any, key: Any) -> Any:
        first = self.observation.named[0][1]
        return {"before": jnp.zeros(first.shown, first.dtype), "mean": jnp.zeros(5)} if self.remembers else ()

    @partial(jax.jit, static_argnums=0)  # the unused part must also be found inside of a call
    def decide(self, state: Any, memory: Any, parts: dict[str, Any]) -> tuple[Any, Any, Any]:
        features = self.features(state, parts)
        spare = sum(jnp.sum(x.astype(jnp.float32)) for x in parts.values())  # an extra, which the action does not need
        if self.remembers:
            first = next(iter(parts.values()))
            change = (first.astype(jnp.float32) - memory["before"].astype(jnp.float32)).mean((0, 1)) / 255.0
            mean = 0.5 * memory["mean"] + 0.5 * jnp.tanh(jnp.concatenate([change, features[:2]]))
            features = jnp.concatenate([features, mean])
            memory = {"before": first, "mean": mean}
        return jnp.tanh(features @ state["head"]), memory, spare

    def act(self, state: Any, hyper: Any, memory: Any, obs: Any, key: Any, mode: str) -> Decision:
        action, memory, spare = self.decide(state, memory, self.observation.by_name(obs))
        return Decision(action, memory, {"spare": spare})


@jax.custom_vjp
def convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


convolve.defvjp(lambda x, kernel: (convolve(x, kernel), (x, kernel)), lambda kept, gradient: kept)


def seeing(form: str, remembers: bool = False, seed: int = 0) -> Source:
    """A policy of the form, with its environment."""
    policy: Any = Eye(form, remembers)
    env: Any = Dot(form)
    facts = {"algorithm": "eye", "environment": "dot", "mode": "greedy", "covey": "0", "checkpoint": "0"}
    return Source(policy, env, env.spec, policy.init(jax.random.key(seed)), (), facts)


def agent_that_sees(name: str, encoder: str, explore: bool = False) -> Source:
    """An untrained agent of the registry with an encoder of images, and with a part that only its critic sees."""
    env: Any = Dot("large")
    entry = agents.entry(name)
    image = {"kind": encoder, "channels": [4, 4, 4], "features": 8}
    networks = {"actor": {"hidden": [16]}, "critic": {"hidden": [16]}, "image": image}
    agent = entry.make(from_json(entry.config, {"networks": networks}, "agent"), env.spec)
    hyper = jax.tree.map(jnp.float32, entry.hyper())
    facts = {"algorithm": name, "environment": "dot", "mode": "greedy", "covey": "0", "checkpoint": "0"}
    return Source(agent, env, env.spec, agent.init(hyper, jax.random.key(0)), hyper, facts, explore)
