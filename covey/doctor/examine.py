"""Gathers the facts about a run from its folder, and applies the rules to them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.doctor.facts import SEVERITIES, Curve, Data, Facts, Fault, Finding
from covey.doctor.rules import findings
from covey.errors import CoveyError
from covey.evaluation.probe import Probe, probe
from covey.evaluation.stats import Interval
from covey.hyper.names import by_name
from covey.hyper.schedule import hyper_at
from covey.replay import Replay, Stored, in_time_order
from covey.storage.best import read_members
from covey.storage.finished import read_final
from covey.storage.folder import RunFolder
from covey.storage.layout import WRITTEN, not_finite, restore, stored_replay
from covey.storage.lineage import Lineage, read_lineage
from covey.storage.metrics import read_fault, read_metrics

MOST_RECORDS = 100_000
"""Records of the replay that are examined, the newest of every member."""
MOST_BYTES = 2**26
"""The same for replays with images."""
PROBED = 128
"""Observations that the networks are examined with."""
MOST_PROBED = 4
"""Members whose networks are examined."""
EVALUATED = ("eval/return", "eval/return_low", "eval/return_high")


class Subject(NamedTuple):
    """A run to examine, as `covey.Run` describes it.

    Args:
        folder: Its folder.
        config: Its configuration.
        program: `program()` returns its policy's program, which has an `agent`, a `spec` and `shapes()`.
        replay: `replay()` returns the layout of its replay.
    """

    folder: RunFolder
    config: Any
    program: Callable[[], Any]
    replay: Callable[[], Replay]


class Diagnosis(NamedTuple):
    """The findings of the doctor, and what could not be examined.

    Args:
        step: The newest step that was logged.
        steps: The steps of the run.
        findings: The findings, worst first.
        left_out: Why some rules had nothing to look at.

    Example:
        >>> run.doctor().findings[0].rule
        'rewards_are_constant'
    """

    step: int
    steps: int
    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{SEVERITIES[each.severity]}: {each}" for each in self.findings] or ["nothing found"]
        return "\n".join([*lines, *(f"not examined: {text}" for text in self.left_out)])

    def as_json(self) -> dict[str, Any]:
        """Returns the diagnosis as JSON values."""
        found = [each.as_json() for each in self.findings]
        return {"step": self.step, "steps": self.steps, "findings": found, "left_out": list(self.left_out)}


def examine(subject: Subject) -> Diagnosis:
    """Applies every rule to a run folder. Changes nothing, and may be called while the run trains.

    Args:
        subject: The run.

    Raises:
        CoveyError: Its metrics are damaged or missing.
    """
    config = subject.config
    lineage, left_out = _lineage(subject)
    fittest = _fittest(lineage)
    facts = _from_metrics(subject, lineage, fittest)
    facts = facts._replace(lineage=lineage, ranges=config.searched(), fault=_fault(subject.folder))
    try:
        facts = _from_checkpoint(subject, facts, fittest)
    except CoveyError as error:
        left_out.append(f"networks and replay. {error}")
    step = round(facts.progress * config.steps)
    return Diagnosis(step, config.steps, tuple(findings(facts)), tuple(left_out))


def _lineage(subject: Subject) -> tuple[Lineage | None, list[str]]:
    path = subject.folder.lineage
    if subject.config.pbt is None or not os.path.lexists(path):
        return None, []
    try:
        return read_lineage(path), []
    except CoveyError as error:
        return None, [f"lineage. {error}"]


def _fittest(lineage: Lineage | None) -> int | None:
    """Returns the member of a population that stands for it: the fittest."""
    if lineage is None or not np.isfinite(lineage.fitness[-1]).any():
        return None
    return int(np.nanargmax(lineage.fitness[-1]))


def _fault(folder: RunFolder) -> Fault | None:
    found = read_fault(folder)
    return Fault(*found) if found else None


def curves_of(metrics: dict[str, dict[str, list[float]]], members: Sequence[int] | None = None) -> dict[str, Curve]:
    """Returns logged columns as curves [n, P]; of hyper-parameters inside of another agent's, by their own name.

    Args:
        metrics: Columns by name, as `read_metrics` returns them. Of rows for the same step, the last one counts.
        members: The members to keep; None for all.
    """
    found = {}
    for name, columns in metrics.items():
        rows: dict[int, dict[int, float]] = {}
        for step, member, value in zip(columns["step"], columns["member"], columns["value"], strict=True):
            if members is None or member in members:
                rows.setdefault(int(step), {})[int(member)] = value
        width = max((len(row) for row in rows.values()), default=0)
        kept = [(step, row) for step, row in sorted(rows.items()) if len(row) == width]
        values = np.array([[row[member] for member in sorted(row)] for _, row in kept], float)
        short = f"hyper/{name.rpartition('/')[2]}" if name.startswith("hyper/") else name
        found[short] = Curve(np.array([step for step, _ in kept]), values.reshape(len(kept), width))
    return found


def _from_metrics(subject: Subject, lineage: Lineage | None, fittest: int | None) -> Facts:
    config = subject.config
    columns = read_metrics(subject.folder.metrics)
    curves = curves_of(columns, None if fittest is None else [fittest])
    schedules = by_name(config.schedules())
    searched = config.searched()
    fixed = {n: (each.start, each.end) for n, each in schedules.items() if n not in searched}
    step = max((curve.steps[-1] for curve in curves.values() if len(curve.steps)), default=0)
    return Facts(
        hyper=fixed,
        space=config.entry.space,
        evaluations=_evaluations(curves),
        untrained=untrained(curves),
        final=_final(subject.folder, config.steps) or _best(curves),
        curves=curves,
        options=flat(asdict(config)),
        progress=min(1.0, float(step) / config.steps),
        is_skill_agent=config.entry.is_skill_agent,
        is_population=config.pbt is not None,
    )


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Returns nested dictionaries as one; the keys are dotted names."""
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def untrained(curves: dict[str, Curve]) -> Interval | None:
    """Returns the evaluation before training, averaged over the members."""
    first = [curves[name] for name in EVALUATED if name in curves and len(curves[name].steps)]
    if len(first) < len(EVALUATED) or first[0].steps[0] != 0:
        return None
    return Interval(*(float(np.mean(each.values[0])) for each in first))


def _evaluations(curves: dict[str, Curve]) -> list[np.ndarray]:
    """Returns mean and interval [P, 3] of every evaluation but the first, in the place of the returns of episodes."""
    found = [curves[name].values for name in EVALUATED if name in curves]
    return list(np.stack(found, axis=-1)[1:]) if len(found) == len(EVALUATED) else []


def _best(curves: dict[str, Curve]) -> Interval | None:
    """Returns the best evaluation after the first one, averaged over the members."""
    found = [np.mean(curves[name].values, axis=1) for name in EVALUATED if name in curves]
    if len(found) < len(EVALUATED) or len(found[0]) < 2 or not np.isfinite(found[0][1:]).any():
        return None
    at = 1 + int(np.nanargmax(found[0][1:]))
    return Interval(*(float(each[at]) for each in found))


def _final(folder: RunFolder, steps: int) -> Interval | None:
    values = read_final(folder, steps)
    numbers = [values.get(name) for name in ("return", "low", "high")] if values else [None]
    return None if None in numbers else Interval(*map(float, numbers))  # type: ignore[arg-type]


def _from_checkpoint(subject: Subject, facts: Facts, fittest: int | None) -> Facts:
    """Adds what the newest checkpoint holds: the replay and the networks."""
    arrays, info = read_members(subject.folder)
    program, layout = subject.program(), subject.replay()
    written = int(arrays[WRITTEN])
    most = min(MOST_RECORDS, MOST_BYTES // layout.record_bytes) if layout.frames else MOST_RECORDS
    rows = -max(1, most // layout.streams)
    stored = jax.tree.map(lambda x: in_time_order(x, written)[:, rows:], Stored(*stored_replay(arrays)))
    discount, scale = facts.current("discount", 0.99), facts.current("reward_scale", 1.0)
    count = len(stored.data)
    members = range(count) if fittest is None or fittest >= count else [fittest]
    each = [jax.tree.map(lambda x, i=i: x[i], stored) for i in range(count)]
    parts = list(program.spec.observation.parts)
    data = [records_of(layout, each[i], parts, discount, scale) for i in members]
    whole = Data(*(np.concatenate(parts) for parts in zip(*data, strict=True)))
    facts = facts._replace(
        data=whole, episode_length=program.train_env.spec.episode_length, action_size=program.spec.action_size
    )
    if facts.curves.get("agent/q_mean") is None:  # nothing has been learned yet
        return facts
    probes = [_probe(program, layout, arrays, info["step"], i, each[i]) for i in list(members)[:MOST_PROBED]]
    return facts._replace(probes=[each for each in probes if each is not None])


def records_of(layout: Replay, stored: Stored, parts: Sequence[str], discount: float, scale: float) -> Data:
    """Returns the transitions in stored records [T, N, ...] of a replay, in time order.

    Args:
        layout: The layout of the replay.
        stored: The records of one member.
        parts: Parts of an observation that are the environment's own; only those of float32 numbers are examined.
        discount: The discount of one step, for the returns.
        scale: The factor of rewards, for the returns.
    """
    rows = stored.data
    wanted = {*parts, *(f"obs.{name}" for name in parts)}
    known = [rows[..., place] for name, place in layout.columns.items() if name in wanted]
    shown = np.concatenate(known, axis=-1) if known else np.zeros((*rows.shape[:2], 0), np.float32)
    records = layout.scalars(rows)
    returns = np.zeros_like(records["reward"])
    following = np.zeros(rows.shape[1])
    for t in range(len(rows) - 1, -1, -1):
        # An episode ends with a record that is no transition, also after a termination.
        following = (scale * records["reward"][t] + discount * following) * (1.0 - records["last"][t])
        returns[t] = following
    valid = records["last"] == 0
    action = rows[..., layout.columns["action"]]
    return Data(*(x[valid] for x in (shown, action, records["reward"], records["terminated"], returns)))


def _probe(program: Any, layout: Replay, arrays: Any, step: int, member: int, stored: Stored) -> Probe | None:
    """Examines the networks of a member with observations from its replay, evenly spaced."""
    own = {name: x[member] for name, x in arrays.items() if name.startswith(("members/agent/", "members/hyper/"))}
    if not_finite(own):
        return None
    state, hyper = program.shapes()
    found = restore({"members": {"agent": state, "hyper": hyper}}, own)["members"]
    now = hyper_at(found["hyper"], program.config.schedules(), jnp.int32(step))
    rows = stored.data
    finite = np.isfinite(rows).all(-1).reshape(-1)
    valid = np.flatnonzero((layout.scalars(rows)["last"].reshape(-1) == 0) & finite)
    if len(valid) < 2:
        return None
    chosen = valid[np.linspace(0, len(valid) - 1, min(PROBED, len(valid))).astype(int)]
    records = layout.ordered_records(stored)
    obs, action = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[chosen], (records.obs, records.action))
    return probe(program.agent, found["agent"], now, obs, action)
