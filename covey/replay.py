"""Replay: a ring buffer of environment streams, time-major, that stores each observation once."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import SamplePlan
from covey.errors import require
from covey.types import Array, Key, Step


class Record(NamedTuple):
    """Environment steps as they are stored: [T, N, ...].

    A successor is not stored: it is the observation of the next record. So the final observation of an episode needs a
    record of its own, with `last` true; its action and reward are ignored. The record after it opens a new episode.

    Args:
        obs: Observations [T, N, obs_size].
        action: Actions [T, N, action_size].
        reward: Rewards [T, N] of these actions.
        terminated: True if the action ended the task, [T, N]. A time limit does not end the task.
        last: True if `obs` is the final observation of an episode, [T, N].
        extras: Further arrays [T, N, size] by name, such as a skill.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    last: Array
    extras: dict[str, Array]


class ReplayState(NamedTuple):
    """The contents of a replay. A slot belongs to one member of a population.

    Args:
        data: Records as flat rows, [slots, rows, streams, width].
        written: Rows ever written, the same number for every slot. It is one shared scalar: with one per member, a
            write under `vmap` would become a scatter.
    """

    data: Array
    written: Array


@dataclass(frozen=True)
class Replay:
    """A ring buffer of the newest `rows` steps of each of `streams` environments.

    Each record is one flat row of float32, so a write is one slice update and a draw is one gather. The cost of a write
    depends on the rows written, not on the capacity, as long as the caller donates the state to `jax.jit`.

    Args:
        rows: Steps kept of each stream.
        streams: Environments that write at the same time.
        obs_size: Numbers in an observation.
        action_size: Numbers in an action.
        extras: Names and sizes of further arrays in a record, such as `(("skill", 8),)`.

    Example:
        >>> replay = covey.Replay(rows=10_000, streams=1, observation=3, action_size=1)
        >>> state = replay.init()
        >>> add = jax.jit(replay.add, donate_argnums=0)
        >>> state = add(state, Record(obs, action, reward, terminated, last, {}))
        >>> batch = replay.sample(state, agent.plan, key)
    """

    rows: int
    streams: int
    obs_size: int
    action_size: int
    extras: tuple[tuple[str, int], ...] = ()

    @property
    def width(self) -> int:
        """Numbers in a record."""
        return self.obs_size + self.action_size + 3 + sum(size for _, size in self.extras)

    @property
    def columns(self) -> dict[str, slice]:
        """The columns of each part of a record in its row; an extra is named `extras.NAME`."""
        sizes = {"obs": self.obs_size, "action": self.action_size, "reward": 1, "terminated": 1, "last": 1}
        sizes |= {f"extras.{name}": size for name, size in self.extras}
        ends = itertools.accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def check(self, plan: SamplePlan, unroll: int, warmup_rows: int, loaded_rows: int = 0) -> None:
        """Raises a CoveyError if this replay can't serve a plan.

        Args:
            plan: The batches that the agent draws.
            unroll: Rows written at once.
            warmup_rows: Rows written before the first draw.
            loaded_rows: Rows loaded before the warm-up.
        """
        need = plan.window + 1
        require(
            self.rows >= max(need, unroll),
            f"The replay holds {self.rows} steps of each of {self.streams} environments, but a window of "
            f"{plan.window} needs {need} steps and one collection writes {unroll}. "
            f"Raise `capacity` to at least {max(need, unroll) * self.streams}.",
        )
        require(self.rows % unroll == 0, f"{self.rows} replay rows are not a multiple of the {unroll} written at once.")
        filled = loaded_rows + warmup_rows
        require(
            filled >= need,
            f"After the warm-up the replay holds {filled} steps of each of {self.streams} environments, but the "
            f"first update draws windows of {plan.window}, which needs {need}. Raise `warmup` to at least "
            f"{(need - loaded_rows) * self.streams}.",
        )

    def init(self, slots: int = 1) -> ReplayState:
        """Returns an empty replay.

        Args:
            slots: Members of the population, each with a buffer of its own.

        Returns:
            The state, which holds `slots * rows * streams` records.
        """
        data = jnp.zeros((slots, self.rows, self.streams, self.width), jnp.float32)
        return ReplayState(data, jnp.zeros((), jnp.int32))

    def restore(self, stored: np.ndarray, written: Array) -> ReplayState:
        """Returns the state from a stored ring, which may have had fewer rows than this replay.

        A ring that grows is put in time order, and `written` restarts at its filled rows. The next row then follows the
        newest one, and no window joins the newest row to the oldest.

        Args:
            stored: The filled rows [slots, filled, streams, width].
            written: Rows ever written to the stored ring.
        """
        filled = stored.shape[1]
        if filled < min(int(written), self.rows):
            stored = in_time_order(stored, int(written))
            written = jnp.asarray(filled, jnp.int32)
        data = np.zeros((stored.shape[0], self.rows, *stored.shape[2:]), np.float32)
        data[:, :filled] = stored
        return ReplayState(jnp.asarray(data), written)

    def add(self, state: ReplayState, records: Record, slot: Array | int = 0) -> ReplayState:
        """Writes records to one slot, over the oldest ones if it is full.

        Args:
            state: The replay. Donate it to `jax.jit`; otherwise every write copies the whole buffer.
            records: Records [T, streams, ...], where T divides `rows`. One step may leave out the axis T; one step of
                one stream may leave out both axes.
            slot: The slot to write to.

        Returns:
            The state with the records added.
        """
        shape = records.reward.shape
        require(
            shape[-1:] == (self.streams,) or (not shape and self.streams == 1),
            f"This replay has {self.streams} streams, so the rewards of its records must have the shape "
            f"[T, {self.streams}], not {list(shape)}.",
        )
        columns = [records.obs, records.action, records.reward[..., None]]
        columns += [records.terminated[..., None], records.last[..., None]]
        columns += [records.extras[name].reshape(*shape, size) for name, size in self.extras]
        block = jnp.concatenate([c.astype(jnp.float32) for c in columns], axis=-1)
        block = block.reshape(-1, self.streams, self.width)
        start = (slot, state.written % self.rows, 0, 0)
        data = jax.lax.dynamic_update_slice(state.data, block[None], start)
        return ReplayState(data, state.written + block.shape[0])

    def sample(self, state: ReplayState, plan: SamplePlan, key: Key, slot: Array | int = 0) -> Step:
        """Draws a batch of windows, with replacement, uniformly over the records of one slot.

        A drawn record that closes an episode is returned with `valid` 0. A window stops being valid at the end of its
        episode. No window extends past the newest record.

        Args:
            state: The replay. It must hold at least `plan.window + 1` rows.
            plan: The size of the batch and the length of its windows.
            key: A random key.
            slot: The slot to draw from.

        Returns:
            Steps [batch_size, window, ...].

        Example:
            >>> batch = replay.sample(state, SamplePlan(batch_size=64), jax.random.key(0))
            >>> batch.obs.shape
            (64, 1, 3)
        """
        return self.sample_bits(state, plan, jax.random.bits(key, (plan.batch_size,), jnp.uint32), slot)

    def sample_bits(self, state: ReplayState, plan: SamplePlan, bits: Array, slot: Array | int = 0) -> Step:
        """Draws a batch as `sample` does, from random bits [batch_size] (uint32) instead of a key.

        Trainers use this form: drawing the bits of many batches at once is cheaper than one call per batch.
        """
        size = jnp.minimum(state.written, self.rows)
        starts = self._starts(size, plan)
        return self._step(self._windows(state.data, plan, bits % starts, slot, state.written - size))

    def sample_all(self, state: ReplayState, plan: SamplePlan, bits: Array, pending: Array, block: int) -> Step:
        """Draws a batch from the records of all slots, for members that take turns to write `block` rows each.

        It draws from the records that every slot held before the block and still holds after it, so all members draw
        from the same records, whatever their turn. Records that are not finite are excluded (see `cleanse`): a member
        that diverges must not spoil the others.

        Args:
            state: The replay.
            plan: The size of the batch and the length of its windows.
            bits: Random bits [batch_size] (uint32).
            pending: Rows of the block that the current member has written so far.
            block: Rows that each member writes in its turn.

        Returns:
            Steps [batch_size, window, ...].
        """
        before = state.written - pending
        size = jnp.minimum(before, self.rows - block)
        starts = self._starts(size, plan)
        slot = (bits // starts % len(state.data)).astype(jnp.int32)[:, None]
        windows = self._windows(state.data, plan, bits % starts, slot, before - size)
        return self._step(self.cleanse(windows[:, :, None])[:, :, 0])

    def _starts(self, size: Array, plan: SamplePlan) -> Array:
        """Returns the number of windows in `size` rows of all streams."""
        return ((size - plan.window) * self.streams).astype(jnp.uint32)

    def _windows(self, data: Array, plan: SamplePlan, index: Array, slot: Array | int, oldest: Array) -> Array:
        """Returns the rows [B, T + 1, width] of windows by index [B], counted from the oldest row over all streams."""
        index = index.astype(jnp.int32)
        row = index // self.streams
        stream = index % self.streams
        offsets = jnp.arange(plan.window + 1, dtype=jnp.int32)
        row = (oldest + row[:, None] + offsets[None]) % self.rows
        flat = data.reshape(-1, self.width)
        place = (slot * self.rows + row) * self.streams + stream[:, None]
        return flat.at[place].get(mode="promise_in_bounds")

    def close(self, state: ReplayState, chosen: Array) -> ReplayState:
        """Closes the episode of the newest record in the chosen slots (bool [slots]), so that no window crosses it."""
        row = (state.written - 1) % self.rows
        newest = jax.lax.dynamic_index_in_dim(state.data, row, axis=1)
        closed = newest
        for name, value in (("reward", 0.0), ("terminated", 0.0), ("last", 1.0)):
            closed = closed.at[..., self.columns[name]].set(value)
        newest = jnp.where(chosen[:, None, None, None], closed, newest)
        return state._replace(data=jax.lax.dynamic_update_index_in_dim(state.data, newest, row, axis=1))

    def cleanse(self, data: Array) -> Array:
        """Returns data [slots, rows, streams, width] in which no transition contains a record that is not finite.

        Such a record, and the one before it, are marked as the last of an episode, so that no transition starts there.
        """
        bad = ~jnp.all(jnp.isfinite(data), axis=-1, keepdims=True)
        last = jnp.zeros(self.width, bool).at[self.columns["last"]].set(True)
        closed = jnp.where((bad | jnp.roll(bad, -1, axis=1)) & last[None, None, None], 1.0, data)
        return jnp.where(bad & ~last[None, None, None], 0.0, closed)

    def records(self, rows: Array) -> Record:
        """Returns rows [..., width] as records."""
        field = {name: rows[..., place] for name, place in self.columns.items()}
        reward, terminated, last = (field[name][..., 0] for name in ("reward", "terminated", "last"))
        extras = {name: field[f"extras.{name}"] for name, _ in self.extras}
        return Record(field["obs"], field["action"], reward, terminated, last, extras)

    def _step(self, window: Array) -> Step:
        """Returns rows [B, T + 1, width] as T steps; the successor of a step is the observation of the next row."""
        records = self.records(window)
        now = jax.tree.map(lambda x: x[:, :-1], records)
        valid = jnp.cumprod(1.0 - now.last, axis=1)
        return Step(now.obs, now.action, now.reward, now.terminated, records.obs[:, 1:], valid, now.extras)


def in_time_order(stored: np.ndarray, written: int) -> np.ndarray:
    """Returns the filled rows [slots, filled, ...] of a ring, oldest first; `written` counts the rows ever written."""
    filled = stored.shape[1]
    return np.roll(stored, -(written % filled), axis=1) if written > filled else stored
