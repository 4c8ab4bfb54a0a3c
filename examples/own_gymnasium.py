"""Your own environment with Gymnasium's interface: a cart on a rail that must stop at the origin.

From the command line:  covey train td3 --env gymnasium:examples.own_gymnasium:Cart --steps 4000
From Python:            python examples/own_gymnasium.py
"""

import gymnasium
import numpy as np

import covey


class Cart(gymnasium.Env):
    """Push a cart with a force of at most 2. The reward is minus its distance from the origin."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(-1.0, 1.0), 0.0])
        self.steps = 0
        return self.state.astype(np.float32), {}

    def step(self, action):
        velocity = 0.95 * self.state[1] + 0.1 * action[0]
        self.state = np.array([self.state[0] + 0.1 * velocity, velocity])
        self.steps += 1
        return self.state.astype(np.float32), -abs(self.state[0]), False, self.steps >= 60, {}

    def render(self):
        picture = np.full((40, 200, 3), 245, np.uint8)
        centre = int(np.clip(100 + 60 * self.state[0], 8, 192))
        picture[12:28, centre - 8 : centre + 8] = (40, 90, 140)
        return picture


if __name__ == "__main__":
    gymnasium.register("Cart-v0", Cart)
    run = covey.train("td3", env="gymnasium:Cart-v0", steps=4000, evaluations=5)
    print(run.evaluate(episodes=20))
