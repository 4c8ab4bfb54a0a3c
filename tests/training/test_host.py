"""The host loop: the compiled loop's learning on environments that are not compiled, overlapped or in strict order."""

import dataclasses
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import envs
from covey.cli import main
from covey.envs.base import Outcome
from covey.replay import Stored
from covey.storage.layout import restore, snapshot
from covey.training.collect import Rows, decide
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.trainer import Trainer
from covey.types import Array, EnvSpec, Key
from tests.host_tasks import Drift
from tests.runs import TINY, assert_same_run
from tests.tasks import assert_same, population, small_trainer

ITERATIONS = 5


def trainer_of_two(name: str = "gymnasium:tests.host_tasks:Drift") -> Trainer:
    """Two environments, two iterations' steps per block."""
    return dataclasses.replace(small_trainer("td3", envs.make(name), envs=2), iterations=ITERATIONS)


class DriftState(NamedTuple):
    x: Array
    t: Array


@dataclasses.dataclass(frozen=True)
class CompiledDrift:
    """`tests.host_tasks.Drift` in JAX."""

    spec = EnvSpec(2, 1, Drift.limit, (-3.0,), (3.0,))

    def reset(self, key: Key) -> tuple[DriftState, Array]:
        state = DriftState(jnp.zeros(()), jnp.zeros(()))
        return state, jnp.stack(state)

    def step(self, state: DriftState, action: Array, key: Key) -> tuple[DriftState, Outcome]:
        state = DriftState(0.9 * state.x + 0.1 * action[0], state.t + 1.0)
        return state, Outcome(jnp.stack(state), -jnp.abs(state.x), state.x > 0.2)


def test_strict_order_is_the_order_of_the_compiled_loop():
    """On the same task with nothing random in it: the same records, episodes and parameters."""
    on_host = trainer_of_two()
    device = DeviceLoop(
        dataclasses.replace(small_trainer("td3", CompiledDrift(), envs=2), iterations=ITERATIONS), 2, "map"
    )
    host = HostLoop(on_host, 2, "map", overlap=False)
    ours, theirs = (loop.advance(population(loop), 4, warmup=False) for loop in (host, device))
    assert int(ours.block) == int(theirs.block) and int(ours.replay.written) == int(theirs.replay.written)
    np.testing.assert_allclose(ours.replay.data, theirs.replay.data, atol=1e-4)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, ours.members.agent, theirs.members.agent)
    close(ours.members.tally.episodes, theirs.members.tally.episodes)
    assert float(ours.members.tally.episodes[0, 0]) > 5


def by_hand(trainer: Trainer, blocks: int) -> Any:
    """The overlapped order, written down: block b is collected by the agent that has learned up to block b - 2."""
    start = population(HostLoop(trainer, 1, "map"))
    member, replay = jax.tree.map(lambda x: x[0], start.members), start.replay
    batch = trainer.env.open(2)
    batch.load(np.asarray(member.world.env.state))
    obs, first, last, memory = member.world.obs, member.world.first, member.world.last, member.world.memory
    agents, member = [member.world.env.actor, member.agent], member._replace(world=())
    learn = jax.jit(trainer.learn, static_argnames="warmup")
    act = jax.jit(partial(decide, trainer.agent), static_argnames="mode")
    for number in range(int(start.block), int(start.block) + blocks):
        draws = trainer.draws(trainer.block_keys(member.key, jnp.int32(number))[1])
        collected = []
        for i in range(trainer.iterations):
            records, after = [], []
            for t in range(trainer.unroll):
                decision = act(agents[-2], member.hyper, memory, first, obs, draws.step[i, t], mode="sample")
                step = batch.step(np.asarray(decision.action))
                reward, ended = jnp.where(last, 0.0, step.reward), last
                terminated = jnp.asarray(step.terminated) & ~ended
                records.append(trainer_record(obs, decision.action, reward, terminated, ended))
                obs, memory, first = jnp.asarray(step.obs), decision.memory, ended
                last = ~ended & jnp.asarray(step.terminated | step.truncated)
                after.append(obs)
            collected.append(Rows(jax.tree.map(lambda *x: jnp.stack(x), *records), jnp.stack(after)))
        for i, rows in enumerate(collected):
            own, iteration = jax.tree.map(lambda x, i=i: x[i], draws), jnp.int32(number * trainer.iterations + i)
            member, replay = learn(member, replay, rows, own, iteration, 0, warmup=False)
        agents.append(member.agent)
    return member.agent, replay


def trainer_record(*fields: Array) -> Any:
    from covey.replay import Record

    return Record(*fields, {})


def test_overlap_is_the_order_written_down():
    trainer = trainer_of_two()
    loop = HostLoop(trainer, 1, "map")
    found = loop.advance(population(loop), 4, warmup=False)
    agent, replay = by_hand(trainer, 4)
    np.testing.assert_allclose(found.replay.data, replay.data, rtol=1e-4, atol=1e-5)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(lambda x, y: close(x[0], y), found.members.agent, agent)


@pytest.mark.parametrize("overlap", [True, False])
def test_where_a_run_is_cut_or_read_back_does_not_matter(overlap: bool):
    """In chunks, and through a checkpoint into another loop with other environments: the same to the bit."""
    trainer = trainer_of_two("gymnasium:Pendulum-v1")
    loop = HostLoop(trainer, 2, "map", overlap)
    whole = loop.advance(population(loop), 5, warmup=False)
    parts = HostLoop(trainer, 2, "map", overlap)
    state = parts.advance(population(parts), 1, warmup=False)
    state = parts.advance(parts.advance(state, 0, warmup=False), 2, warmup=False)
    again = HostLoop(trainer, 2, "map", overlap)
    kept = snapshot(state)
    state = restore(jax.eval_shape(lambda: state), kept)
    assert_same(whole, again.advance(state, 2, warmup=False))


def trained_after_a_compiled_run(overlap: bool) -> Any:
    """The agent of a host run in a process that has trained in the compiled loop before."""
    compiled = DeviceLoop(small_trainer("td3", CompiledDrift(), envs=2), 1, "map")
    jax.block_until_ready(population(compiled))
    loop = HostLoop(trainer_of_two(), 1, "map", overlap)
    start = loop.advance(population(loop), 0, warmup=False)
    return jax.device_get(loop.advance(start, 3, warmup=False).members.agent)


def test_a_host_run_on_one_device_is_that_on_two(tmp_path: Path):
    """Where acting and learning share a device, the learner donates its arrays and acting keeps its own."""
    code = """
import sys, jax, numpy
from tests import conftest
jax.config.update("jax_num_cpu_devices", 1)
from tests.training.test_host import trained_after_a_compiled_run
assert len(jax.devices()) == 1
for overlap in (True, False):
    numpy.savez(f"{sys.argv[1]}/{overlap}", *jax.tree.leaves(trained_after_a_compiled_run(overlap)))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    for overlap in (True, False):
        found = np.load(tmp_path / f"{overlap}.npz")
        for name, leaf in zip(found, jax.tree.leaves(trained_after_a_compiled_run(overlap)), strict=True):
            np.testing.assert_array_equal(found[name], leaf)


def test_members_in_lock_step_are_those_in_turn():
    trainer = trainer_of_two()
    loops = [HostLoop(trainer, 2, "map"), HostLoop(trainer, 2, "vmap")]
    one, two = (loop.advance(population(loop), 2, warmup=False) for loop in loops)
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, one.members.agent, two.members.agent)
    close(one.replay.data, two.replay.data)
    assert int(one.replay.written) == int(two.replay.written)


def test_a_run_may_begin_with_data():
    loop = HostLoop(trainer_of_two(), 1, "map")
    new = loop.init(
        jax.tree.map(lambda s: jnp.full(1, s.start), loop.trainer.schedules), jax.random.split(jax.random.key(0), 1)
    )
    data = np.asarray(population(loop).replay.data)[:, :60]
    state = loop.advance(loop.load(new, Stored(jnp.asarray(data), {})), 1, warmup=False)
    assert int(state.replay.written) == 60 + ITERATIONS
    np.testing.assert_array_equal(state.replay.data[:, :60], data)
    assert float(state.members.agent.statistics.observations.rows[0]) == 2 * (60 + ITERATIONS)


class Logged(gymnasium.Wrapper):
    """Keeps what Gymnasium's own wrapper says of finished episodes."""

    found: list[tuple[float, int]]

    def step(self, action: Any):
        result = self.env.step(action)
        if "episode" in result[4]:
            self.found.append((result[4]["episode"]["r"], result[4]["episode"]["l"]))
        return result


def test_episodes_are_counted_as_gymnasium_counts_them():
    env, found = envs.make("gymnasium:InvertedPendulum-v5"), []

    def factory() -> gymnasium.Env:
        made = Logged(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("InvertedPendulum-v5")))
        made.found = found
        return made

    env = dataclasses.replace(env, factory=factory, state_size=0, unsaved="it is wrapped")
    trainer = dataclasses.replace(small_trainer("td3", env, envs=2), iterations=ITERATIONS)
    loop = HostLoop(trainer, 1, "map")
    state = loop.advance(population(loop), 6, warmup=False)
    count, returns, lengths = (float(x) for x in state.members.tally.episodes[0])
    assert count == len(found) > 5
    assert returns == pytest.approx(sum(r for r, _ in found), rel=1e-4) and lengths == sum(n for _, n in found)


def test_episodes_that_can_not_be_saved_are_cut_off_and_start_anew():
    """No transition leads from the observation before the restart to one after it, and the run says what happened."""
    trainer = trainer_of_two("gymnasium:tests.host_tasks:Opaque")
    loop = HostLoop(trainer, 1, "map")
    state = loop.advance(population(loop), 1, warmup=False)
    state = loop.advance(state, 1, warmup=False)
    assert not loop.take_messages(), "the same loop continues with its own environments"
    before = int(state.replay.written)
    again = HostLoop(trainer, 1, "map")
    state = again.advance(state, 1, warmup=False)
    (text,) = again.take_messages()
    assert "Opaque.hidden" in text and "start anew" in text and not again.take_messages()
    data = np.asarray(state.replay.data[0])
    obs, last = data[..., :2], data[..., 5]
    assert (last[before] == 1).all()
    assert (obs[before + 1, :, 1] == 0).all() and (obs[before + 1, :, 0] != obs[before, :, 0]).all()


def test_a_broken_episode_ends_at_its_last_observation(tmp_path: Path, monkeypatch):
    """What a worker did not answer is in no transition, and is counted."""
    monkeypatch.setenv("COVEY_TEST_FAILURE", "raise")
    monkeypatch.setenv("COVEY_TEST_MARK", str(tmp_path / "failed"))
    env = envs.make("gymnasium:tests.host_tasks:Once")
    trainer = dataclasses.replace(small_trainer("td3", env, envs=2), iterations=ITERATIONS)
    loop = HostLoop(trainer, 1, "map", workers=1)
    state = population(loop)
    loop.close()
    assert loop.take_broken()["train/broken"].tolist() == [2] and loop.take_broken()["train/broken"].tolist() == [0]
    data = np.asarray(state.replay.data[0, : int(state.replay.written)])
    obs, reward, last = data[..., :2], data[..., 3], data[..., 5]
    assert ((obs[1:, :, 0] == obs[:-1, :, 0]) | (last[:-1] == 1)).all(), "no transition into another episode"
    complete = (obs[..., 1] >= 3) & ~((obs[..., 0] % 2 == 1) & (obs[..., 1] < 5))
    for n in (0, 1):
        (cut,) = np.flatnonzero((last[:, n] == 1) & ~complete[:, n])
        assert reward[cut, n] == 0 and obs[cut + 1, n, 1] == 0


RUN: dict[str, Any] = TINY | {"env": "gymnasium:Pendulum-v1", "episodes": 2, "evaluations": 2, "steps": 700}


def test_a_run_that_is_cut_off_ends_as_one_that_was_left_alone(tmp_path: Path, monkeypatch, capsys):
    whole = covey.train("td3", out=tmp_path / "whole", quiet=True, **RUN).path

    def die(session: Any) -> None:
        if session.block == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("covey.run.session.Session._check_finite", die)
        covey.train("td3", out=tmp_path / "cut", quiet=True, checkpoint_minutes=0.0, **RUN)
    assert main(["resume", str(tmp_path / "cut")]) == 0
    out = capsys.readouterr().out
    assert "Resuming from step 400" in out and "start anew" not in out and "animation:" in out
    assert_same_run(whole, tmp_path / "cut")


def test_a_run_of_a_host_environment_learns(tmp_path: Path):
    """Swinging the pendulum up needs bootstrapping through thousands of right transitions; random acting gets -1200."""
    agent = {"networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64]}}, "batch_size": 64}
    hyper = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}
    options = {"env": "gymnasium:Pendulum-v1", "steps": 4000, "warmup": 500, "evaluations": 4, "episodes": 10}
    run = covey.train("sac", out=tmp_path / "run", quiet=True, agent=agent, hyper=hyper, **options)
    assert max(run.metrics()["eval/return"]["value"]) > -350
    assert (run.path / "media" / "curve.png").exists()
