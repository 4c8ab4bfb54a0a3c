"""Brax: robots of MuJoCo's benchmarks, simulated in JAX (`brax:NAME[@backend]`)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.compiled.adapter import (
    EXPENSIVE_START,
    draw,
    import_library,
    load_mujoco,
    loading_models,
    quiet,
    relaxed_promotion,
    scalar,
)
from covey.envs.options import as_arguments, check_names, parameters
from covey.errors import unknown
from covey.types import Array, Descriptor, EnvSpec, Key

BACKENDS = ("spring", "mjx", "generalized", "positional")
"""Brax's physics engines; the first is the default (docs/environments.md gives the reasons)."""
STEPS = 1000
"""Brax's episode length."""
OMNI_STEPS = 200
"""The episode length of the `_omni` tasks."""
REACH = 30.0
"""The limit of the position in `_omni` tasks, for maps and goals, in metres; a robot may leave it."""
TOUCH = 0.01
"""A foot touches the floor if its lowest point is at most this far above it, in metres."""


class Task(NamedTuple):
    """Facts about a task of Brax that Brax itself does not provide."""

    descriptor: Descriptor | None = None
    """The descriptor, for tasks without feet."""
    forward: str = ""
    """Robots with feet: the name of Brax's metric of the forward reward."""
    directions: tuple[str, ...] = ()
    """Robots with feet: the axes along which they can move."""


def _limits(names: tuple[str, ...], size: float, **options: Any) -> Descriptor:
    return Descriptor(names, (-size,) * len(names), (size,) * len(names), **options)


_CART = _limits(("x",), 1.5, coordinates=(0,), reduce="mean")
TASKS = {
    "ant": Task(forward="reward_forward", directions=("x", "y")),
    "halfcheetah": Task(forward="reward_run", directions=("x",)),
    "hopper": Task(forward="reward_forward", directions=("x",)),
    "walker2d": Task(forward="reward_forward", directions=("x",)),
    "humanoid": Task(forward="forward_reward", directions=("x", "y")),
    "reacher": Task(_limits(("x", "y"), 0.25)),
    "pusher": Task(_limits(("x", "y"), 1.0)),
    "inverted_pendulum": Task(_CART),
    "inverted_double_pendulum": Task(_CART),
}
OMNI, UNI = "_omni", "_uni"
"""Endings of task names: without the forward reward, and with it (the default)."""


def names() -> tuple[str, ...]:
    """Returns the names that `make` accepts; each may be followed by @ and a backend."""
    return tuple(sorted(f"{task}{end}" for task, known in TASKS.items() for end in _endings(known)))


def make(name: str, kwargs: Mapping[str, Any] | None = None) -> "Brax":
    """Makes the environment `brax:NAME[@backend]` with Brax's arguments. `ant_uni` is another name of `ant`."""
    task, at, backend = name.partition("@")
    if task not in names():
        raise unknown("Brax environment", task, names())
    if at and backend not in BACKENDS:
        raise unknown("backend of Brax", backend, BACKENDS)
    inner = task.removesuffix(OMNI).removesuffix(UNI)
    if kwargs:
        known = parameters(import_library("brax.envs", "brax")._envs[inner])
        check_names(kwargs, known and tuple(n for n in known if n != "backend"), f"brax:{name}")
    env = Brax(inner, backend or BACKENDS[0], task.endswith(OMNI), tuple(as_arguments(kwargs or {}).items()))
    _load(env)
    return env


def _endings(task: Task) -> tuple[str, ...]:
    return ("", OMNI, UNI) if task.forward else ("",)


@dataclass(frozen=True)
class Brax:
    """A task of Brax, on one of its backends.

    Observation, reward and termination are Brax's. With `omni`, robots with feet get no reward for moving forward.
    Descriptor: robots with feet: which feet touch the floor, averaged over the episode; with `omni`, the position of
    the torso. Arms: the position of the tip or the object. Carts: the position of the cart.
    Reference: Freeman et al. (2021), arXiv 2106.13281; the descriptors are those of quality-diversity research.
    """

    task: str
    backend: str = BACKENDS[0]
    omni: bool = False
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def spec(self) -> EnvSpec:
        return _spec(self)

    def reset(self, key: Key) -> tuple[Any, Array]:
        with relaxed_promotion():
            state = _load(self).reset(key)
        return state.pipeline_state, state.obs.astype(jnp.float32)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        from brax.envs.base import State

        nothing = jnp.zeros(())
        with relaxed_promotion():
            # Brax reads only the physics of the previous state, so the other fields can be empty.
            before = State(state, nothing, nothing, nothing, metrics={}, info={})
            after = _load(self).step(before, jnp.clip(action, -1.0, 1.0))
        reward = scalar(after.reward)
        if self.omni:
            reward = reward - scalar(after.metrics[TASKS[self.task].forward])
        return after.pipeline_state, Outcome(after.obs.astype(jnp.float32), reward, scalar(after.done) > 0.5)

    def descriptor(self, state: Any) -> Array:
        task = TASKS[self.task]
        where = state.x.pos
        if self.omni:
            return where[0, : len(task.directions)]
        if task.forward:
            return (_clearance(_feet(self), state.x) < TOUCH).astype(jnp.float32)
        if self.task == "reacher":
            tip = jnp.array([0.11, 0.0, 0.0])
            return (where[1] + _rotate(tip, state.x.rot[1]))[:2]
        return where[-2, :2] if self.task == "pusher" else where[0, :1]

    def frame(self, state: Any) -> np.ndarray:
        model = _load(self).sys.mj_model
        return draw(model, state.q, camera=0 if model.ncam else -1)

    def replay(self, states: list[Any]) -> str:
        """Returns Brax's HTML page that replays the states in a browser."""
        from brax.io import html

        system = _load(self).sys
        with quiet(), relaxed_promotion():
            return html.render(system.tree_replace({"opt.timestep": 1.0 / self.spec.frames_per_second}), states)


@functools.cache
def _load(env: Brax) -> Any:
    """Loads Brax's environment. Its arrays must not become tracers if the caller is being traced."""
    library = import_library("brax.envs", "brax")
    with loading_models(), jax.ensure_compile_time_eval():
        return library.get_environment(env.task, backend=env.backend, **dict(env.kwargs))


@functools.cache
def _spec(env: Brax) -> EnvSpec:
    inner = _load(env)
    task = TASKS[env.task]
    _, obs = jax.eval_shape(lambda: env.reset(jax.random.key(0)))
    if env.omni:
        descriptor = _limits(task.directions, REACH)
    elif task.forward:
        feet = _feet(env)
        count = len(feet.names)
        descriptor = Descriptor(feet.names, (0.0,) * count, (1.0,) * count, is_position=False, reduce="mean")
    else:
        descriptor = task.descriptor
    size = inner.action_size
    with jax.ensure_compile_time_eval():
        seconds = float(inner.dt)
    return EnvSpec(
        observation=obs.shape[0],
        action_size=size,
        episode_length=OMNI_STEPS if env.omni else STEPS,
        action_low=(-1.0,) * size,
        action_high=(1.0,) * size,
        descriptor=descriptor,
        frames_per_second=1.0 / seconds,
        steps_per_start=EXPENSIVE_START,
    )


class Feet(NamedTuple):
    """The feet of a robot: capsules or spheres at the ends of its legs, each fixed to a link."""

    names: tuple[str, ...]
    link: np.ndarray
    ends: np.ndarray
    """Both ends of a capsule's axis in the frame of its link, [feet, 2, 3]; for a sphere, its centre twice."""
    radius: np.ndarray


@functools.cache
def _feet(env: Brax) -> Feet:
    """Finds the feet: shapes that can collide, on links without children. The ant's have no names in Brax."""
    mujoco = load_mujoco()
    model = _load(env).sys.mj_model
    parents = set(model.body_parentid[1:].tolist())
    found = []
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom])
        collides = bool(model.geom_contype[geom] | model.geom_conaffinity[geom])
        if body == 0 or body in parents or not collides:
            continue
        radius, half = model.geom_size[geom][:2]
        is_capsule = model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CAPSULE
        axis = np.zeros(3)
        mujoco.mju_rotVecQuat(axis, np.array([0.0, 0.0, half * is_capsule]), model.geom_quat[geom])
        ends = model.geom_pos[geom] + np.stack([axis, -axis])
        found.append((model.geom(geom).name.removesuffix("_geom"), body - 1, ends, radius))
    foot_names, link, ends, radius = zip(*found, strict=True)
    return Feet(foot_names, np.array(link), np.array(ends, np.float32), np.array(radius, np.float32))


def _clearance(feet: Feet, x: Any) -> Array:
    """Returns the height of each foot's lowest point above the floor, in metres, [feet].

    Args:
        feet: The robot's feet.
        x: The transforms of its links.
    """

    def lowest(link: Array, ends: Array, radius: Array) -> Array:
        turned = jax.vmap(_rotate, in_axes=(0, None))(ends, x.rot[link])
        return jnp.min(turned[:, 2]) + x.pos[link, 2] - radius

    return jax.vmap(lowest)(*map(jnp.asarray, (feet.link, feet.ends, feet.radius)))


def _rotate(vector: Array, rotation: Array) -> Array:
    """Rotates a vector [3] by a unit quaternion [4] (w, x, y, z)."""
    real, axis = rotation[0], rotation[1:]
    twice = 2.0 * jnp.cross(axis, vector)
    return vector + real * twice + jnp.cross(axis, twice)
