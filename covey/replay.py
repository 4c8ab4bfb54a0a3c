"""Replay: a ring buffer of environment streams, time-major, that stores each observation once.

The numbers of a record are one row of float32. Parts of the observation that are not float32, such as images, and
stacked ones have arrays of their own (`frames`). Of a stack only the newest frame is stored: a draw finds the earlier
ones in the records before, back to the start of the episode.
"""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import SamplePlan
from covey.errors import require
from covey.observation import Obs, Observation, Part
from covey.types import Array, Key, Step


class Record(NamedTuple):
    """Environment steps as they are stored: [T, N, ...].

    A successor is not stored: it is the observation of the next record. So the final observation of an episode needs a
    record of its own, with `last` true; its action and reward are ignored. The record after it opens a new episode.

    Args:
        obs: Observations [T, N, ...], an array or a dictionary of them.
        action: Actions [T, N, action_size].
        reward: Rewards [T, N] of these actions.
        terminated: True if the action ended the task, [T, N]. A time limit does not end the task.
        last: True if `obs` is the final observation of an episode, [T, N].
        extras: Further arrays [T, N, size] by name, such as a skill.
    """

    obs: Obs
    action: Array
    reward: Array
    terminated: Array
    last: Array
    extras: dict[str, Array]


class Stored(NamedTuple):
    """Records as the replay stores them, in NumPy or JAX.

    Args:
        data: Flat rows, [slots, rows, streams, width].
        frames: By name of part, the frames that are not in the rows, flat, [slots, rows, streams, size]; {} if the
            observation is a vector.
    """

    data: Any
    frames: dict[str, Any]


class ReplayState(NamedTuple):
    """The contents of a replay. A slot belongs to one member of a population.

    Args:
        data: Records as flat rows, [slots, rows, streams, width].
        written: Rows ever written, the same number for every slot. It is one shared scalar: with one per member, a
            write under `vmap` would become a scatter.
        frames: By name of part, the frames that are not in the rows (see `Stored`).
    """

    data: Array
    written: Array
    frames: dict[str, Array]

    @property
    def stored(self) -> Stored:
        """The records of all slots."""
        return Stored(self.data, self.frames)


@dataclass(frozen=True)
class Replay:
    """A ring buffer of the newest `rows` steps of each of `streams` environments.

    The numbers of a record are one flat row of float32, so a write is one slice update and a draw is one gather, and
    one more of each for every image. The cost of a write depends on the rows written, not on the capacity, as long as
    the caller donates the state to `jax.jit`.

    Args:
        rows: Steps kept of each stream.
        streams: Environments that write at the same time.
        observation: The form of an observation, as `EnvSpec.observation`: an int is the size of a vector.
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
    observation: Any  # an `Observation`, once `__post_init__` has converted what was given
    action_size: int
    extras: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation", Observation.of(self.observation))

    @property
    def width(self) -> int:
        """Numbers in the row of a record."""
        return sum(place.stop - place.start for place in self.columns.values())

    @property
    def frames(self) -> dict[str, Part]:
        """The parts of the observation that have arrays of their own, by name."""
        return {name: part for name, part in self.observation.named if not part.is_row}

    @property
    def record_bytes(self) -> int:
        """Bytes of one record: one step of one environment."""
        return 4 * self.width + sum(part.size * np.dtype(part.dtype).itemsize for part in self.frames.values())

    @property
    def columns(self) -> dict[str, slice]:
        """The columns of each part of a record in its row.

        The observation is named `obs`, or `obs.PART` if it is a dictionary, and an extra `extras.NAME`.
        """
        rows = {name: part.size for name, part in self.observation.named if part.is_row}
        sizes = {self.column(name): size for name, size in rows.items()}
        sizes |= {"action": self.action_size, "reward": 1, "terminated": 1, "last": 1}
        sizes |= {f"extras.{name}": size for name, size in self.extras}
        ends = itertools.accumulate(sizes.values())
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def column(self, part: str) -> str:
        """Returns the name of a part of the observation among the columns and in files."""
        return part if self.observation.is_array else f"obs.{part}"

    def check(self, plan: SamplePlan, unroll: int, warmup_rows: int, loaded_rows: int = 0) -> None:
        """Raises a CoveyError if this replay can't serve a plan.

        Args:
            plan: The batches that the agent draws.
            unroll: Rows written at once.
            warmup_rows: Rows written before the first draw.
            loaded_rows: Rows loaded before the warm-up.
        """
        need = plan.window + self.observation.stack
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
        shape = (slots, self.rows, self.streams)
        frames = {name: jnp.zeros((*shape, part.size), part.dtype) for name, part in self.frames.items()}
        return ReplayState(jnp.zeros((*shape, self.width), jnp.float32), jnp.zeros((), jnp.int32), frames)

    def restore(self, stored: Stored, written: Array) -> ReplayState:
        """Returns the state from a stored ring, which may have had fewer rows than this replay.

        A ring that grows is put in time order, and `written` restarts at its filled rows. The next row then follows the
        newest one, and no window joins the newest row to the oldest.

        Args:
            stored: The filled rows [slots, filled, streams, ...].
            written: Rows ever written to the stored ring.
        """
        filled = stored.data.shape[1]
        if filled < min(int(written), self.rows):
            stored = jax.tree.map(lambda x, n=int(written): in_time_order(x, n), stored)
            written = jnp.asarray(filled, jnp.int32)

        def grown(x: np.ndarray) -> Array:
            whole = np.zeros((x.shape[0], self.rows, *x.shape[2:]), x.dtype)
            whole[:, :filled] = x
            return jnp.asarray(whole)

        data, frames = jax.tree.map(grown, stored)
        return ReplayState(data, written, frames)

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
        obs = self.observation.by_name(records.obs)
        columns = [obs[name].reshape(*shape, part.size) for name, part in self.observation.named if part.is_row]
        columns += [records.action, records.reward[..., None]]
        columns += [records.terminated[..., None], records.last[..., None]]
        columns += [records.extras[name].reshape(*shape, size) for name, size in self.extras]
        block = jnp.concatenate([c.astype(jnp.float32) for c in columns], axis=-1)
        newest = {name: obs[name][..., -part.shape[-1] :] for name, part in self.frames.items()}

        def write(buffer: Array, block: Array) -> Array:
            block = block.reshape(1, -1, self.streams, buffer.shape[-1])
            return jax.lax.dynamic_update_slice(buffer, block, (slot, state.written % self.rows, 0, 0))

        data, frames = jax.tree.map(write, state.stored, Stored(block, newest))
        rows = block.size // (self.streams * self.width)
        return ReplayState(data, state.written + rows, frames)

    def sample(self, state: ReplayState, plan: SamplePlan, key: Key, slot: Array | int = 0) -> Step:
        """Draws a batch of windows, with replacement, uniformly over the records of one slot.

        A drawn record that closes an episode is returned with `valid` 0. A window stops being valid at the end of its
        episode. No window extends past the newest record.

        Args:
            state: The replay. It must hold at least `plan.window + 1` rows, and `stack - 1` more if frames are stacked.
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
        return self._step(*self._windows(state, plan, bits % starts, slot, state.written - size))

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
        rows, frames = self._windows(state, plan, bits % starts, slot, before - size)
        rows, frames = jax.tree.map(lambda x: x[:, :, None], (rows, frames))
        rows, frames = jax.tree.map(lambda x: x[:, :, 0], self.cleanse(Stored(rows, frames)))
        return self._step(rows, frames)

    def _starts(self, size: Array, plan: SamplePlan) -> Array:
        """Returns the number of windows in `size` rows of all streams. The oldest rows may have lost earlier frames."""
        return ((size - plan.window - (self.observation.stack - 1)) * self.streams).astype(jnp.uint32)

    def _windows(
        self, state: ReplayState, plan: SamplePlan, index: Array, slot: Array | int, oldest: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Returns windows by index [B], counted from the oldest row over all streams.

        Returns:
            Their rows [B, T + 1, width], and by name of part their frames, stacked, [B, T + 1, ...].
        """
        earlier = self.observation.stack - 1
        index = index.astype(jnp.int32)
        row = index // self.streams
        stream = index % self.streams
        offsets = jnp.arange(earlier + plan.window + 1, dtype=jnp.int32)
        row = (oldest + row[:, None] + offsets[None]) % self.rows
        flat = state.data.reshape(-1, self.width)
        place = (slot * self.rows + row) * self.streams + stream[:, None]
        rows = flat.at[place].get(mode="promise_in_bounds")
        last = rows[..., self.columns["last"]][..., 0]
        frames = {name: self._stacks(name, state.frames[name], place, last, earlier) for name in self.frames}
        return rows[:, earlier:], frames

    def _stacks(self, name: str, frames: Array, place: Array, last: Array, earlier: int) -> Array:
        """Returns the stacks [B, T + 1, ...] of a part, of rows at the places [B, earlier + T + 1] of a ring.

        Args:
            name: The part.
            frames: Its frames [slots, rows, streams, size].
            place: Indices of rows; the first `earlier` of each window are there for their frames only.
            last: 1 for rows that close an episode, of the same shape.
            earlier: The largest number of earlier frames of any part.
        """
        part = self.frames[name]
        now = jnp.arange(earlier, place.shape[1], dtype=jnp.int32)
        back = frames_back(last, part.stack, earlier)
        chosen = jnp.take_along_axis(place[:, None], now[None, :, None] - back, axis=-1)
        found = frames.reshape(-1, part.size).at[chosen].get(mode="promise_in_bounds")
        return stack_frames(found, part)

    def close(self, state: ReplayState, chosen: Array) -> ReplayState:
        """Closes the episode of the newest record in the chosen slots (bool [slots]), so that no window crosses it."""
        row = (state.written - 1) % self.rows
        newest = jax.lax.dynamic_index_in_dim(state.data, row, axis=1)
        closed = newest
        for name, value in (("reward", 0.0), ("terminated", 0.0), ("last", 1.0)):
            closed = closed.at[..., self.columns[name]].set(value)
        newest = jnp.where(chosen[:, None, None, None], closed, newest)
        return state._replace(data=jax.lax.dynamic_update_index_in_dim(state.data, newest, row, axis=1))

    def cleanse(self, stored: Stored) -> Stored:
        """Returns records [slots, rows, streams, ...] of which no transition contains one that is not finite.

        Such a record, and the one before it, are marked as the last of an episode, so that no transition starts there.
        """
        data = stored.data
        bad = ~jnp.all(jnp.isfinite(data), axis=-1, keepdims=True)
        floats = {name: x for name, x in stored.frames.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        for frames in floats.values():
            bad |= ~jnp.all(jnp.isfinite(frames), axis=tuple(range(3, frames.ndim))).reshape(bad.shape)
        last = jnp.zeros(self.width, bool).at[self.columns["last"]].set(True)
        closed: Any = jnp.where((bad | jnp.roll(bad, -1, axis=1)) & last[None, None, None], 1.0, data)
        data = jnp.where(bad & ~last[None, None, None], 0.0, closed)
        finite = {name: jnp.where(jnp.isfinite(x), x, 0.0) for name, x in floats.items()}
        return Stored(data, stored.frames | finite)

    def records(self, rows: Array, frames: dict[str, Array] | None = None) -> Record:
        """Returns rows [..., width] as records.

        Args:
            rows: Rows of the replay.
            frames: By name, the stacked frames [..., height, width, channels] of the parts that are not in the rows.
        """
        field = {name: rows[..., place] for name, place in self.columns.items()}
        reward, terminated, last = self.scalars(rows).values()
        extras = {name: field[f"extras.{name}"] for name, _ in self.extras}
        parts = dict(frames or {})
        for name, part in self.observation.named:
            if part.is_row:
                parts[name] = field[self.column(name)].reshape(*rows.shape[:-1], *part.shape)
        return Record(self.observation.of_names(parts), field["action"], reward, terminated, last, extras)

    def scalars(self, rows: Any) -> dict[str, Any]:
        """Returns reward, terminated and last of rows [..., width], in NumPy or JAX."""
        return {name: rows[..., self.columns[name]][..., 0] for name in ("reward", "terminated", "last")}

    def ordered_records(self, stored: Stored) -> Record:
        """Returns stored records [T, N, ...] of one slot, in time order, as records with stacked frames."""
        last = jnp.asarray(stored.data[..., self.columns["last"]][..., 0]).T
        now = jnp.arange(last.shape[1], dtype=jnp.int32)
        frames = {}
        for name, part in self.frames.items():
            chosen = now[None, :, None] - frames_back(last, part.stack)
            found = jax.vmap(lambda x, at: x[at], (1, 0), 1)(jnp.asarray(stored.frames[name]), chosen)
            frames[name] = stack_frames(found, part)
        return self.records(jnp.asarray(stored.data), frames)

    def _step(self, rows: Array, frames: dict[str, Array]) -> Step:
        """Returns rows [B, T + 1, width] as T steps; the successor of a step is the observation of the next row."""
        records = self.records(rows, frames)
        now = jax.tree.map(lambda x: x[:, :-1], records)
        after = jax.tree.map(lambda x: x[:, 1:], records.obs)
        valid = jnp.cumprod(1.0 - now.last, axis=1)
        return Step(now.obs, now.action, now.reward, now.terminated, after, valid, now.extras)


def frames_back(last: Array, stack: int, skipped: int = 0) -> Array:
    """Returns how many rows back each frame of a stack is, [..., T - skipped, stack], oldest frame first.

    The frames of a stack belong to one episode: its first frame is repeated before there are enough. Rows before the
    first one count as another episode.

    Args:
        last: 1 for rows that close an episode, [..., T] in time order.
        stack: Frames in a stack.
        skipped: Leave out this many rows at the beginning, which are there for their frames only.
    """
    back = jnp.zeros(last.shape, jnp.int32)
    same = jnp.ones(last.shape, jnp.int32)
    frames = [back]
    for j in range(1, stack):
        before = jnp.roll(last, j, axis=-1).at[..., :j].set(1.0)  # whether the record j rows earlier closed an episode
        same = same * (1 - before.astype(jnp.int32))
        back = back + same
        frames.insert(0, back)
    return jnp.stack(frames, axis=-1)[..., skipped:, :]


def stack_frames(found: Array, part: Part) -> Array:
    """Returns flat frames [..., stack, size] of a part as the policy receives them, with the shape `Part.shown`."""
    rows = found.shape[:-2]
    found = found.reshape(*rows, part.stack, *part.shape)
    if part.stack == 1:
        return found.reshape(*rows, *part.shape)
    # Frames are joined along the last axis of the part, so the axis of the stack moves before it.
    return jnp.moveaxis(found, len(rows), -2).reshape(*rows, *part.shown)


def in_time_order(stored: np.ndarray, written: int) -> np.ndarray:
    """Returns the filled rows [slots, filled, ...] of a ring, oldest first; `written` counts the rows ever written."""
    filled = stored.shape[1]
    return np.roll(stored, -(written % filled), axis=1) if written > filled else stored
