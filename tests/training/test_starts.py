"""Start states where a reset is expensive: fewer are drawn, and nothing else changes."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

from covey.training.collect import draw_starts
from covey.training.device import DeviceLoop
from covey.types import EnvSpec
from tests.tasks import Counter, assert_same, population, small_trainer


@dataclass(frozen=True)
class ExpensiveStart(Counter):
    """A counter whose starts are expensive. Its episodes are much shorter than that."""

    steps_per_start: int = 20

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, steps_per_start=self.steps_per_start)


def drawn(trainer):
    env, rows, envs = trainer.env, trainer.block_rows, trainer.envs
    starts, _ = jax.eval_shape(lambda key: draw_starts(env, key, rows, envs), jax.random.key(0))
    return starts.episode.size


@pytest.mark.parametrize("envs", [1, 4, 64])
def test_a_start_for_so_many_steps(envs: int):
    cheap, expensive = (
        small_trainer("td3", ExpensiveStart(steps_per_start=n), envs=envs, capacity=10_000) for n in (2, 20)
    )
    assert cheap == replace(small_trainer("td3", Counter(), envs=envs, capacity=10_000), env=cheap.env)
    assert drawn(cheap) >= 0.5 * cheap.block_steps
    assert drawn(expensive) <= 0.1 * expensive.block_steps


def test_episodes_begin_at_drawn_states_and_chunks_do_not_matter():
    trainer = small_trainer("td3", ExpensiveStart(), envs=2)
    loop = DeviceLoop(trainer, 1, "map")
    one, two = (population(loop) for _ in range(2))
    one = loop.advance(one, 3, warmup=False)
    for _ in range(3):
        two = loop.advance(two, 1, warmup=False)
    assert_same(one, two)
    # Of the short episodes in a block of 100 rows, the starts are the few that were drawn, in turn.
    rows = np.asarray(one.replay.data)[0, : int(one.replay.written), 0]
    starts = rows[rows[:, 1] == 0.0, 0]
    count = -(-trainer.block_rows // trainer.env.spec.steps_per_start)
    assert count == 3 and len(np.unique(starts)) > count
    assert len(starts) > 3 * len(np.unique(starts))
