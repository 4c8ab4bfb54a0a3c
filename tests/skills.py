"""A small environment with a descriptor, and batches with skills, for the tests of skill agents."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from covey.agents.sac import SACConfig
from covey.agents.skills.prior import Skills
from covey.envs.builtin.point import Point
from covey.envs.described import Described
from covey.nn.normalise import RunningStats
from covey.nn.parts import Networks, Torso
from covey.types import Step

ENV = Described(Point(goal=False))
SPEC = ENV.spec  # obs: x, y, vx, vy; descriptor: x, y; return
TORSO = Torso(hidden=(8,))
SAC = SACConfig(networks=Networks(TORSO, TORSO, actor_head="tanh_normal"), batch_size=8)
CONTINUOUS, FIVE = Skills(kind="continuous"), Skills(number=5)


def described(x):
    """Rows [..., 7] as observations: four numbers of the point itself, its descriptor, and the return."""
    return {"obs": x[..., :4], "descriptor": x[..., 4:6], "return": x[..., 6:]}


def batch_of(agent, seed: int = 0) -> Step:
    """A batch [B, 1] with skills, whose fourth row closes an episode."""
    random, count = np.random.default_rng(seed), agent.plan.batch_size

    def normal(*tail):
        return jnp.asarray(random.normal(size=(count, 1, *tail)), jnp.float32)

    skill = agent.config.skills.draw(jax.random.key(seed), count)[:, None]
    extras = {"skill": skill, "log_prob": normal(1)}
    obs, valid = normal(7), jnp.ones((count, 1)).at[3].set(0.0)
    action = jnp.tanh(normal(2))
    reward, next_obs = normal(), obs + 0.3 * normal(7)
    return Step(described(obs), action, reward, jnp.zeros((count, 1)), described(next_obs), valid, extras)


def stats(seed: int) -> RunningStats:
    random = np.random.default_rng(seed)
    return RunningStats(jnp.float32(10.0), *(jnp.asarray(random.uniform(0.5, 2, 2), jnp.float32) for _ in range(2)))


def normalised(stats: RunningStats, x: np.ndarray) -> np.ndarray:
    return np.clip((x - np.asarray(stats.mean)) / np.sqrt(np.asarray(stats.squares) / 10 + 1e-6), -10, 10)


def first_gradient(optimiser):
    """The gradient of Adam's only update: its first moment is a tenth of that."""
    return jax.tree.map(lambda x: 10 * np.asarray(x), optax.tree_utils.tree_get(optimiser, "mu"))
