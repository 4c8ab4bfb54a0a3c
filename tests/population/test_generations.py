"""A generation carried out on real members: what is copied, what is kept, what is renewed."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from covey.errors import CoveyError
from covey.replay import Replay, Stored
from covey.run.config import default_config
from covey.run.program import Program, build
from covey.run.tuning import Tuning
from covey.storage.folder import RunFolder
from covey.storage.metrics import RunFiles
from covey.training.member import Population
from tests.runs import TINY
from tests.tasks import SMALL, arrays


def exchanged(
    fitness: list[float], failed: tuple[int, ...] = (), agent: Any = TINY["agent"], **pbt: Any
) -> tuple[Program, Population, Population]:
    """The program, and four members before and after a generation in which they have this fitness."""
    pbt = {"bottom": 0.5, "resample": 0.0} | pbt
    options = TINY | {"seeds": 4, "pbt": pbt, "devices": 2, "agent": agent}
    if pbt.get("replay") == "share":
        options["devices"] = 1
    program = build(default_config("td3", **options).resolved())
    population = program.loop.advance(program.init(print), 4, warmup=True)
    before = jax.device_get(arrays(population))
    tuning = Tuning(program, program.config.pbt, RunFiles(RunFolder(Path()), range(4), 0, {}, writes=False))
    flags = np.isin(np.arange(4), failed)
    ranking = tuning.rank(population, np.array(fitness), np.array(fitness)[:, None], flags)
    after = tuning.exchange(population, program.generations[0], ranking, rescue=False)
    return program, before, jax.device_get(arrays(after))


def assert_row(one: Any, i: int, two: Any, j: int) -> None:
    """Member i of one has what member j of the other has, to the bit."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[i], b[j]), one, two)


def closed(program: Program, population: Population) -> np.ndarray:
    """The replay of all members, each with its newest record as the final one of an episode."""
    data, columns = np.array(population.replay.data), program.loop.trainer.replay.columns
    newest = data[:, int(population.replay.written) - 1]
    newest[..., columns["reward"]] = newest[..., columns["terminated"]] = 0.0
    newest[..., columns["last"]] = 1.0
    return data


def test_losers_of_one_donor_copy_it_and_stay_apart():
    _, before, after = exchanged([0.0, 9.0, 1.0, 5.0])
    for loser in (0, 2):
        assert_row(after.members.agent, loser, before.members.agent, 1)
        ratio = after.members.hyper.actor_lr[loser] / before.members.hyper.actor_lr[1]
        assert min(abs(ratio - 0.8), abs(ratio - 1.25)) < 1e-5 or after.members.hyper.actor_lr[loser] in (1e-5, 3e-3)
        assert after.members.hyper.reward_scale[loser] == 1.0, "what is not searched stays"
    for kept in (1, 3):
        assert_row(after.members.agent, kept, before.members.agent, kept)
        assert_row(after.members.hyper, kept, before.members.hyper, kept)
    keys = {bytes(key) for key in after.members.key}
    assert len(keys) == 4, "every clone has its own random stream"
    assert any(x[0] != x[2] for x in after.members.hyper)
    jax.tree.map(np.testing.assert_array_equal, after.members.world, before.members.world)
    np.testing.assert_array_equal(after.replay.data, before.replay.data)


def test_a_copy_does_not_continue_the_return_of_its_donors_episode():
    running = {"normalise": {"rewards": True}}
    _, before, after = exchanged([0.0, 9.0, 1.0, 5.0], agent=TINY["agent"] | running)
    donor, clone = before.members.agent.statistics, after.members.agent.statistics
    assert donor.running[1] != 0 and clone.running.tolist() == [0, donor.running[1], 0, donor.running[3]]
    assert_row(clone.returns, 0, donor.returns, 1)


def test_replay_is_copied_on_demand():
    program, before, after = exchanged([0.0, 9.0, 1.0, 5.0], replay="copy")
    expected = closed(program, before)[1]
    for loser in (0, 2):
        np.testing.assert_array_equal(after.replay.data[loser], expected)
    np.testing.assert_array_equal(after.replay.data[3], before.replay.data[3])


def test_a_failed_member_begins_again():
    program, before, after = exchanged([0.0, 9.0, 1.0, np.nan], failed=(2,), bottom=0.25)
    assert_row(after.members.agent, 2, before.members.agent, 1)
    assert_row(after.members.agent, 3, before.members.agent, 1)
    assert_row(after.members.agent, 0, before.members.agent, 0)
    assert not np.array_equal(after.members.world.obs[2], before.members.world.obs[2])
    assert after.members.world.first[2].all() and not after.members.world.clock[2].any()
    np.testing.assert_array_equal(after.members.world.obs[0], before.members.world.obs[0])
    ended = closed(program, before)
    np.testing.assert_array_equal(after.replay.data[2:], ended[2:])
    np.testing.assert_array_equal(after.replay.data[:2], before.replay.data[:2])


def test_a_cleansed_replay_has_no_transition_that_is_not_finite():
    replay = Replay(rows=6, streams=1, observation=2, action_size=1)
    data = np.arange(36.0, dtype=np.float32).reshape(1, 6, 1, 6)
    data[..., replay.columns["last"]] = 0.0
    data[0, 3, 0, 0] = np.nan
    found = np.asarray(replay.cleanse(Stored(data, {})).data)
    last = found[0, :, 0, replay.columns["last"].start]
    np.testing.assert_array_equal(last, [0, 0, 1, 1, 0, 0])
    assert np.isfinite(found).all()
    kept = np.arange(6) != 3
    shown = [i for i in range(6) if i != replay.columns["last"].start]
    np.testing.assert_array_equal(found[0, kept][..., shown], data[0, kept][..., shown])


def test_sharing_needs_one_device():
    options = TINY | {"seeds": 4, "pbt": {"replay": "share"}, "devices": 2}
    with pytest.raises(CoveyError, match="one process and `devices` 1"):
        build(default_config("td3", **options).resolved())


def test_where_a_shared_run_is_cut_into_chunks_does_not_matter():
    options = TINY | {"seeds": 2, "pbt": {"replay": "share", "bottom": 0.5, "top": 0.5}}
    program = build(default_config("td3", **options).resolved())

    def run(*chunks: int) -> Any:
        population = program.loop.advance(program.init(print), 4, warmup=True)
        for chunk in chunks:
            population = program.loop.advance(population, chunk, warmup=False)
        return jax.device_get(arrays(population))

    whole, parts = run(3), run(1, 2)
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


def test_nested_hyper_parameters_are_tuned():
    options = {"env": "point-free", "steps": 1200, "warmup": 400, "seeds": 4, "devices": 1, "envs": 2}
    config = default_config("dads", **options, agent=SMALL["dads"], pbt={"resample": 1.0}).resolved()
    program = build(config)
    population = program.init(print)
    before = jax.device_get(arrays(population))
    tuning = Tuning(program, config.pbt, RunFiles(RunFolder(Path()), range(4), 0, {}, writes=False))
    zeros = np.zeros(4)
    ranking = tuning.rank(population, np.array([3.0, 2.0, 1.0, 0.0]), zeros[:, None], zeros > 0)
    after = jax.device_get(arrays(tuning.exchange(population, program.generations[0], ranking, rescue=False)))
    assert_row(after.members.agent, 3, before.members.agent, 0)
    new, old = after.members.hyper, before.members.hyper
    for mine, theirs in ((new.sac.tau, old.sac.tau), (new.dynamics_lr, old.dynamics_lr)):
        assert mine[3] not in (theirs[3], theirs[0]) and mine[1] == theirs[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seeds": 4, "devices": 3}, "`devices` 3 is more than the 2 available"),
        ({"seeds": 3, "devices": 2}, "3 members can't be divided among 2 devices.*1 or 3 devices.*2 or 4 members"),
        ({"seeds": 4, "pbt": {"fitness": "cells"}}, "no fitness called 'cells'"),
        ({"seeds": 1, "pbt": {}}, "`members` must be at least 2"),
        ({"seeds": 4, "pbt": {"bottom": 0.1}}, "less than one"),
        ({"seeds": 4, "pbt": {}, "hyper": {"tau": "linear:0.1:0.2"}, "space": {"tau": "0.1:0.3"}}, "follows the sched"),
        ({"seeds": 4, "pbt": {}, "space": {"taw": "0.1:0.3"}}, "taw"),
        ({"seeds": 4, "pbt": {"bottomm": 0.1}}, "bottomm"),
    ],
)
def test_wrong_populations(options: dict, says: str):
    with pytest.raises(CoveyError, match=says):
        build(default_config("td3", **(TINY | options)).resolved())


def test_a_scheduled_value_is_not_searched_unless_asked():
    options = TINY | {"seeds": 4, "pbt": {}, "hyper": {"tau": "linear:0.1:0.2"}}
    assert "tau" not in default_config("td3", **options).searched()
