"""prt-rl's TD3 in the comparison.

Its learner and its loop are one method, so it runs in a thread. Its evaluator, which is called after every step, blocks
the thread between rounds.
"""

# pyright: reportMissingImports=false

import threading
from typing import Any

import torch
from prt_rl.common.components.heads import ContinuousHead, QValueHead
from prt_rl.common.components.networks import build_mlp
from prt_rl.env.wrappers.gymnasium_envs import GymnasiumWrapper
from prt_rl.model_free.td3 import TD3Agent, TD3Config, TD3Policy

from benchmarks.peers.work import ACTION, BATCH, CAPACITY, HIDDEN, OBS, STEPS, UPDATES, Work, serve


class Turns:
    """An evaluator that pauses the training after a number of steps until the next round."""

    def __init__(self, steps: int) -> None:
        self.steps, self.taken = steps, 0
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def evaluate(self, agent: Any, iteration: int) -> None:
        self.taken += 1
        if self.taken % self.steps == 0:
            self.done.release()
            self.asked.acquire()

    def close(self) -> None:
        pass


def td3(steps: int, updates: int) -> Work:
    """A round of `steps` steps of HalfCheetah, each with `updates` updates."""
    policy = TD3Policy(
        build_mlp(OBS, (HIDDEN, HIDDEN), "relu"),
        ContinuousHead(HIDDEN, ACTION),
        QValueHead(HIDDEN, ACTION),
        action_min=-torch.ones(ACTION),
        action_max=torch.ones(ACTION),
    )
    config = TD3Config(
        buffer_size=CAPACITY, min_buffer_size=1000, mini_batch_size=BATCH, gradient_steps=updates, learning_rate=3e-4
    )
    turns, env = Turns(steps), GymnasiumWrapper("HalfCheetah-v5")
    agent = TD3Agent(policy, config)
    options = {"evaluator": turns, "show_progress": False}
    threading.Thread(target=agent.train, args=(env, 10**9), kwargs=options, daemon=True).start()
    turns.done.acquire()

    def run() -> None:
        turns.asked.release()
        turns.done.acquire()

    return Work(run, steps * updates)


if __name__ == "__main__":
    serve({"td3": lambda: td3(1, UPDATES), "halfcheetah": lambda: td3(STEPS, 1)})
