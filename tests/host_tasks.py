"""Small Gymnasium environments that tests use."""

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


def box(low: float, high: float, size: int) -> spaces.Box:
    return spaces.Box(low, high, (size,), np.float32)


class Counted(gymnasium.Env):
    """`tests.tasks.Counter` in Gymnasium: an even episode terminates after 3 steps, an odd one is cut after 5."""

    observation_space, action_space = box(0, 1e6, 2), box(-1, 1, 1)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.episode, self.steps = float(self.np_random.integers(1_000_000)), 0
        return self._obs(), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        even = self.episode % 2 == 0
        return self._obs(), 10.0 * self.steps, even and self.steps >= 3, not even and self.steps >= 5, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.episode, self.steps], np.float32)


class CountedTwoActions(Counted):
    action_space = box(-1, 1, 2)


class Drift(gymnasium.Env):
    """A point on a line that starts at 0 and ends beyond 0.2: nothing random, so that two loops can be compared."""

    observation_space, action_space = box(-9, 9, 2), box(-3, 3, 1)
    limit = 7

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = np.float32(0), 0
        return self._obs(), {}

    def step(self, action: np.ndarray):
        self.x = np.float32(0.9) * self.x + np.float32(0.1 / 3) * action[0]
        self.t += 1
        return self._obs(), float(-abs(self.x)), bool(self.x > 0.2), self.t >= self.limit, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.x, self.t], np.float32)


class Failing(Counted):
    """Fails at its tenth step if its first seed was 1, as `COVEY_TEST_FAILURE` says: raise, die or hang."""

    first: int | None = None
    taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        self.first = seed if self.first is None else self.first
        return super().reset(seed=seed)

    def step(self, action: np.ndarray):
        self.taken += 1
        if self.taken == 10 and self.fails():
            match os.environ.get("COVEY_TEST_FAILURE"):
                case "raise":
                    raise ValueError("the arm fell off")
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(60)
        return super().step(action)

    def fails(self) -> bool:
        return self.first == 1


class Hopeless(Failing):
    def fails(self) -> bool:
        return True


class Once(Failing):
    """Fails unless the file that `COVEY_TEST_MARK` names is there, and makes it."""

    def fails(self) -> bool:
        mark = Path(os.environ["COVEY_TEST_MARK"])
        if mark.exists():
            return False
        mark.touch()
        return True


class Discrete(Counted):
    action_space = spaces.Discrete(3)


class Boundless(Counted):
    action_space = box(-np.inf, np.inf, 1)


class Nested(Counted):
    """A dictionary of observations, and an action of two rows."""

    observation_space = spaces.Dict(
        {"z": box(0, 1, 1), "a": spaces.Box(0, 1, (2, 2), np.float64), "m": spaces.Discrete(3)}
    )
    action_space = spaces.Box(np.array([[0.0], [-5.0]], np.float32), np.array([[1.0], [10.0]], np.float32))

    def step(self, action: np.ndarray):
        assert action.shape == (2, 1) and action.dtype == np.float32 and self.action_space.contains(action), action
        self.taken = action.tolist()
        return super().step(action)

    def _obs(self) -> Any:
        return {"a": np.array([[0.1, 0.2], [0.3, 0.4]]), "m": 1, "z": np.array([0.9], np.float32)}


class Opaque(Counted):
    """Keeps a part of its state where nobody can see it."""

    def __init__(self) -> None:
        self.hidden = iter(range(10**9))


class Unending(Counted):
    def step(self, action: np.ndarray):
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class Moody(Counted):
    """Draws from a generator that no seed reaches."""

    def step(self, action: np.ndarray) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + float(np.random.default_rng().random()), terminated, truncated, info


class Sleepy(Counted):
    """Does not return from its 300th step."""

    taken = 0

    def step(self, action: np.ndarray):
        self.taken += 1
        if self.taken == 300:
            print("asleep", flush=True)
            time.sleep(600)
        return super().step(action)


class Arm(gymnasium.Env):
    """A reward of two parts, an argument, and no time limit of its own."""

    observation_space = box(-10.0, 10.0, 1)
    action_space = box(-1.0, 1.0, 1)

    def __init__(self, gain: float = 0.1, offsets: tuple[float, ...] = (0.0,), render_mode: str | None = None) -> None:
        assert isinstance(offsets, tuple)
        self.gain = gain
        self.offset = sum(offsets)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.place = np.full(1, self.offset, np.float32)
        return self.place, {}

    def step(self, action: np.ndarray):
        self.place = np.clip(self.place + self.gain * action, -10.0, 10.0).astype(np.float32)
        near, effort = -float(self.place[0] ** 2), -0.1 * float(action[0] ** 2)
        info = {"near": near, "effort": effort, "label": "arm", "pair": np.ones(2)}
        return self.place, near + effort, False, False, info


class Images(Counted):
    observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)

    def _obs(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


def short_arm(gain: float = 0.2) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Arm(gain), 5)


def doubled(env: gymnasium.Env) -> gymnasium.Env:
    """A wrapper that doubles the observation."""
    return gymnasium.wrappers.TransformObservation(env, lambda obs: 2.0 * obs, env.observation_space)


def nothing(env: Any) -> None:
    """A wrapper that returns no environment."""


class Camera(Counted):
    """An image that shows its episode and step, and a render mode."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(0, 255, (20, 16, 3), np.uint8)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def _obs(self) -> Any:
        picture = np.zeros((20, 16, 3), np.uint8)
        picture[..., 0] = self.episode % 250
        picture[..., 1] = self.steps
        picture[0, 0, 2] = 7
        return picture

    def render(self) -> Any:
        """A picture of 40 x 80 pixels: the left half is as bright as there were steps, times 10."""
        picture = np.zeros((40, 80, 3), np.uint8)
        picture[:, :40] = 10 * self.steps
        return picture


class Senses(Counted):
    """A nested observation with all kinds of leaves."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"joint": box(-1, 1, 2), "grips": spaces.MultiBinary(2)}),
            "camera": spaces.Box(0, 255, (20, 16, 3), np.uint8),
            "depth": spaces.Box(0.0, 1.0, (16, 16, 1), np.float64),
            "grid": spaces.Box(0, 9, (2, 2), np.int64),
            "pair": spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 3])]),
        }
    )

    def _obs(self) -> Any:
        camera = np.arange(20 * 16 * 3, dtype=np.uint16).reshape(20, 16, 3) + self.steps
        return {
            "arm": {"joint": np.array([0.1 * self.steps, 0.2], np.float32), "grips": np.array([0, 1], np.int8)},
            "camera": (camera % 256).astype(np.uint8),
            "depth": np.full((16, 16, 1), 0.1 * self.steps),
            "grid": np.array([[1, 2], [3, self.steps]]),
            "pair": (self.steps % 3, np.array([1, 2])),
        }


class Pair(Counted):
    observation_space = spaces.Tuple([box(0, 1e6, 2)])

    def _obs(self) -> Any:
        return (super()._obs(),)


class Odd(Counted):
    """A space that its argument names, to test errors and warnings."""

    SPACES: ClassVar[dict[str, spaces.Space[Any]]] = {
        "reserved": spaces.Dict({"return": box(0, 1, 1)}),
        "twice": spaces.Dict({"a/b": box(0, 1, 1), "a": spaces.Dict({"b": box(0, 1, 1)})}),
        "list": spaces.Dict({"all": spaces.Sequence(box(0, 1, 1))}),
        "channels first": spaces.Box(0, 255, (3, 32, 24), np.uint8),
        "grey": spaces.Box(0, 255, (20, 20), np.uint8),
        "bright": spaces.Box(0.0, 300.0, (20, 20, 3), np.float32),
        "too bright": spaces.Box(0, 255, (20, 20, 3), np.uint8),
    }

    def __init__(self, kind: str = "bright") -> None:
        self.kind = kind
        self.observation_space = self.SPACES[kind]

    def _obs(self) -> Any:
        if self.kind == "too bright":
            return np.full((20, 20, 3), 256)
        space: Any = self.observation_space
        return np.full(space.shape, 200, space.dtype)


class Roamer(gymnasium.Env):
    """A point in the plane with noise; `info` holds where it is. Its episodes are cut after 6 steps."""

    observation_space, action_space = box(-9, 9, 3), box(-1, 1, 2)
    limit = 6

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.where, self.t = self.np_random.uniform(-1, 1, 2), 0
        return self._obs(), self._info()

    def step(self, action: np.ndarray):
        self.where = self.where + action + 0.1 * self.np_random.normal(size=2)
        self.t += 1
        return self._obs(), float(self.where[0]), False, self.t >= self.limit, self._info()

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 40 * self.t, np.uint8)

    def _obs(self) -> Any:
        return np.array([*self.where, self.t], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"x": float(self.where[0]), "y": float(self.where[1]), "both": self.where.copy(), "text": "here"}


class RoamerWithCamera(Roamer):
    """`Roamer` with an image beside its vector."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "state": box(-9, 9, 3)})

    def _obs(self) -> Any:
        return {"camera": np.full((8, 8, 1), self.t, np.uint8), "state": super()._obs()}


def place(env: Any) -> np.ndarray:
    return env.where


def place_and_time(env: Any, obs: Any, info: dict[str, Any]) -> list[float]:
    return [env.where[0], float(np.ravel(obs)[2]), info["y"]]


def two_arguments(env: Any, obs: Any) -> float:
    return 0.0


def growing(env: Any) -> list[float]:
    return [0.0] * (1 + env.t)
