"""Replay: a time-major ring of streams that stores each observation once."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import SamplePlan
from covey.errors import require
from covey.types import Array, Step


class Record(NamedTuple):
    """One environment step, [T, N, ...]. `last`: `obs` is the final observation of an episode, and nothing follows.

    `reward` and `terminated` are what the action led to. The record after a `last` one opens a new episode.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    last: Array
    extras: dict[str, Array]


class ReplayState(NamedTuple):
    """`data` [slots, rows, streams, width]; `written` counts the rows ever written, the same for every slot.

    A slot is a member of a population. The counter is one shared scalar: with one per member, a write under `vmap`
    would become a scatter.
    """

    data: Array
    written: Array


@dataclass(frozen=True)
class Replay:
    """How records lie in memory: `rows` steps of `streams` environments, each record one flat row of float32.

    One row per record keeps a write one slice update and a draw one gather. Writing costs the rows written, never
    the capacity, as long as the caller donates the state.
    """

    rows: int
    streams: int
    obs_size: int
    action_size: int
    extras: tuple[tuple[str, int], ...] = ()

    @property
    def width(self) -> int:
        return self.obs_size + self.action_size + 3 + sum(size for _, size in self.extras)

    @property
    def columns(self) -> dict[str, slice]:
        """Where in its row each part of a record lies, an extra as `extras.NAME`."""
        sizes = {"obs": self.obs_size, "action": self.action_size, "reward": 1, "terminated": 1, "last": 1}
        sizes |= {f"extras.{name}": size for name, size in self.extras}
        ends = itertools.accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def check(self, plan: SamplePlan, unroll: int, warmup_rows: int, loaded_rows: int = 0) -> None:
        """Raises a CoveyError where this replay could not serve the plan."""
        need = plan.window + 1
        require(
            self.rows >= max(need, unroll),
            f"The replay holds {self.rows} steps of each of {self.streams} environments, but a window of "
            f"{plan.window} needs {need} steps and one collection writes {unroll}. "
            f"Raise --capacity to at least {max(need, unroll) * self.streams}.",
        )
        require(self.rows % unroll == 0, f"{self.rows} replay rows are not a multiple of the {unroll} written at once.")
        filled = loaded_rows + warmup_rows
        require(
            filled >= need,
            f"After the warm-up the replay holds {filled} steps of each of {self.streams} environments, but the "
            f"first update draws windows of {plan.window}, which needs {need}. Raise --warmup to at least "
            f"{(need - loaded_rows) * self.streams}.",
        )

    def init(self, slots: int) -> ReplayState:
        data = jnp.zeros((slots, self.rows, self.streams, self.width), jnp.float32)
        return ReplayState(data, jnp.zeros((), jnp.int32))

    def restore(self, stored: np.ndarray, written: Array) -> ReplayState:
        """The state from the filled rows [slots, filled, ...] of a stored ring, which may have had fewer rows.

        A ring that grows is put in time order and counted from its filled rows: the next row follows the newest, and
        no window joins the newest to the oldest.
        """
        filled = stored.shape[1]
        if filled < min(int(written), self.rows):
            stored, written = in_time_order(stored, int(written)), jnp.asarray(filled, jnp.int32)
        data = np.zeros((stored.shape[0], self.rows, *stored.shape[2:]), np.float32)
        data[:, :filled] = stored
        return ReplayState(jnp.asarray(data), written)

    def add(self, state: ReplayState, records: Record, slot: Array | int = 0) -> ReplayState:
        """The state with records [T, streams, ...] written to one slot; T must divide `rows`."""
        columns = [records.obs, records.action, records.reward[..., None]]
        columns += [records.terminated[..., None], records.last[..., None]]
        columns += [records.extras[name].reshape(*records.reward.shape, size) for name, size in self.extras]
        block = jnp.concatenate([c.astype(jnp.float32) for c in columns], axis=-1)
        start = (slot, state.written % self.rows, 0, 0)
        data = jax.lax.dynamic_update_slice(state.data, block[None], start)
        return ReplayState(data, state.written + block.shape[0])

    def sample(self, state: ReplayState, plan: SamplePlan, bits: Array, slot: Array | int = 0) -> Step:
        """Windows [B, T] whose starts are uniform over a slot's stored records, from random bits [B] (uint32).

        A start that closes an episode is returned with `valid` 0, and a window stops being valid where its episode
        ends. No window reaches past the newest record.
        """
        size = jnp.minimum(state.written, self.rows)
        starts = self._starts(size, plan)
        return self._step(self._windows(state.data, plan, bits % starts, slot, state.written - size))

    def sample_all(self, state: ReplayState, plan: SamplePlan, bits: Array, pending: Array, block: int) -> Step:
        """The same over the records of all slots, for members that take turns to write `block` rows each.

        `pending` of these rows has the member whose turn it is written so far. It draws what every slot held before the
        block and still holds after it, so that all members draw from the same records, whatever their turn. A record
        that is not finite is no part of a transition: one member's failure must not become the others'.
        """
        before = state.written - pending
        size = jnp.minimum(before, self.rows - block)
        starts = self._starts(size, plan)
        slot = (bits // starts % len(state.data)).astype(jnp.int32)[:, None]
        windows = self._windows(state.data, plan, bits % starts, slot, before - size)
        return self._step(self.cleanse(windows[:, :, None])[:, :, 0])

    def _starts(self, size: Array, plan: SamplePlan) -> Array:
        """How many windows begin in `size` rows of all streams."""
        return ((size - plan.window) * self.streams).astype(jnp.uint32)

    def _windows(self, data: Array, plan: SamplePlan, index: Array, slot: Array | int, oldest: Array) -> Array:
        """The rows [B, T + 1, width] of windows by their index [B], counted from the oldest row over all streams."""
        index = index.astype(jnp.int32)
        row, stream = index // self.streams, index % self.streams
        offsets = jnp.arange(plan.window + 1, dtype=jnp.int32)
        row = (oldest + row[:, None] + offsets[None]) % self.rows
        flat = data.reshape(-1, self.width)
        place = (slot * self.rows + row) * self.streams + stream[:, None]
        return flat.at[place].get(mode="promise_in_bounds")

    def close(self, state: ReplayState, chosen: Array) -> ReplayState:
        """The newest record of the chosen slots [slots] closes its episode: what is written next does not follow it."""
        row = (state.written - 1) % self.rows
        newest = jax.lax.dynamic_index_in_dim(state.data, row, axis=1)
        closed = newest
        for name, value in (("reward", 0.0), ("terminated", 0.0), ("last", 1.0)):
            closed = closed.at[..., self.columns[name]].set(value)
        newest = jnp.where(chosen[:, None, None, None], closed, newest)
        return state._replace(data=jax.lax.dynamic_update_index_in_dim(state.data, newest, row, axis=1))

    def cleanse(self, data: Array) -> Array:
        """Data [slots, rows, streams, width] in which records that are not finite are no part of any transition.

        They and the ones before them are made to close an episode, so that nothing starts or goes on there.
        """
        bad = ~jnp.all(jnp.isfinite(data), axis=-1, keepdims=True)
        last = jnp.zeros(self.width, bool).at[self.columns["last"]].set(True)
        closed = jnp.where((bad | jnp.roll(bad, -1, axis=1)) & last[None, None, None], 1.0, data)
        return jnp.where(bad & ~last[None, None, None], 0.0, closed)

    def records(self, rows: Array) -> Record:
        """Rows [..., width] as records."""
        field = {name: rows[..., place] for name, place in self.columns.items()}
        reward, terminated, last = (field[name][..., 0] for name in ("reward", "terminated", "last"))
        extras = {name: field[f"extras.{name}"] for name, _ in self.extras}
        return Record(field["obs"], field["action"], reward, terminated, last, extras)

    def _step(self, window: Array) -> Step:
        """Rows [B, T + 1, width] as T steps."""
        records = self.records(window)
        now = jax.tree.map(lambda x: x[:, :-1], records)
        valid = jnp.cumprod(1.0 - now.last, axis=1)
        return Step(now.obs, now.action, now.reward, now.terminated, records.obs[:, 1:], valid, now.extras)


def in_time_order(stored: np.ndarray, written: int) -> np.ndarray:
    """The filled rows [slots, filled, ...] of a ring, oldest first, where `written` rows were ever written."""
    filled = stored.shape[1]
    return np.roll(stored, -(written % filled), axis=1) if written > filled else stored
