"""Stable-Baselines3 and SBX in the comparison; they have the same interface: `... with_stable_baselines td3 sbx`."""

# pyright: reportMissingImports=false

import sys
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.peers.work import ACTION, BATCH, CAPACITY, HIDDEN, INSERTS, OBS, STEPS, UPDATES, Work, serve

LIBRARY = sys.argv[2]
PIXEL_UPDATES = 20
WIDTH = {"net_arch": [HIDDEN, HIDDEN]}


def model(name: str, env: Any, **options: Any) -> Any:
    """Makes an agent with the common sizes and learning rates; everything else is the library's default."""
    kind = getattr(import_module({"sb3": "stable_baselines3"}.get(LIBRARY, LIBRARY)), name.upper())
    common = {"learning_rate": 3e-4, "batch_size": BATCH, "buffer_size": CAPACITY, "train_freq": 1, "gradient_steps": 1}
    if name == "td3":
        from stable_baselines3.common.noise import NormalActionNoise

        size = env.action_space.shape[0]
        common["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    common |= {"policy_kwargs": {"net_arch": [HIDDEN, HIDDEN]}, **options}
    return kind("MlpPolicy", env, **common)


def learner(name: str) -> Work:
    """Measures `train` alone, after a thousand random steps."""
    agent = model(name, gymnasium.make("HalfCheetah-v5"), learning_starts=1000)
    agent.learn(1000)
    return Work(lambda: agent.train(UPDATES, BATCH), UPDATES)


def halfcheetah(name: str) -> Work:
    agent = model(name, gymnasium.make("HalfCheetah-v5"), learning_starts=1000)
    agent.learn(1100)
    return Work(lambda: agent.learn(STEPS, reset_num_timesteps=False), STEPS)


def insert(capacity: int) -> Work:
    box = gymnasium.spaces.Box
    observation, action = box(-1, 1, (OBS,), np.float32), box(-1, 1, (ACTION,), np.float32)
    replay = ReplayBuffer(capacity, observation, action, handle_timeout_termination=True)
    obs, act, one = np.zeros((1, OBS), np.float32), np.zeros((1, ACTION), np.float32), np.zeros(1)

    def run() -> None:
        for _ in range(INSERTS):
            replay.add(obs, obs, act, one, one, [{}])

    return Work(run, INSERTS)


class Pictures(gymnasium.Env):
    """An environment that costs nothing, with images."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 9), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTION,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((64, 64, 9), np.uint8), {}

    def step(self, action: np.ndarray) -> Any:
        return np.full((64, 64, 9), int(127 * (1 + action[0])), np.uint8), float(action.sum()), False, False, {}


def pixels() -> Work:
    """SAC's CnnPolicy: an encoder for the actor and one for the critics, with Nature's layers."""
    kind = import_module({"sb3": "stable_baselines3"}.get(LIBRARY, LIBRARY)).SAC
    agent = kind("CnnPolicy", Pictures(), batch_size=64, buffer_size=2_000, learning_starts=500, policy_kwargs=WIDTH)
    agent.learn(500)
    return Work(lambda: agent.train(PIXEL_UPDATES, 64), PIXEL_UPDATES)


def curve(task: str, name: str, seed: int, steps: int, every: int, warmup: int) -> None:
    """Trains, and prints `step S  return R` after every `every` steps: the mean of ten greedy episodes."""
    agent = model(name, gymnasium.make(task), seed=seed, learning_starts=warmup)
    evaluation_env = gymnasium.make(task)
    evaluation_env.reset(seed=10_000 + seed)
    for step in range(every, steps + 1, every):
        agent.learn(every, reset_num_timesteps=step == every)
        mean, _ = evaluate_policy(agent, evaluation_env, n_eval_episodes=10, warn=False)
        print(f"step {step}  return {mean:.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "curve":
        task, name, *numbers = sys.argv[3:]
        curve(task, name, *map(int, numbers))
    else:
        serve(
            {
                "pixels": pixels,
                "td3": lambda: learner("td3"),
                "sac": lambda: learner("sac"),
                "halfcheetah": lambda: halfcheetah("td3"),
                "halfcheetah-sac": lambda: halfcheetah("sac"),
            }
            | {f"insert-{rows}": lambda rows=rows: insert(rows) for rows in (10_000, 100_000, 1_000_000)}
        )
