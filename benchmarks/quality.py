"""Writes the tables and figures of docs/learning-quality.md from benchmarks/results/*.csv, and from nothing else.

    python -m benchmarks.quality            # after `python -m benchmarks.campaign --folder OUT --collect`

The text between the two markers of the page is generated; tests/benchmarks/test_quality.py checks that it is current.
Intervals are 95 % percentile bootstrap intervals over seeds. The probability of improvement of A over B is the share of
pairs of seeds in which A has the higher return (ties count half).
"""

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.campaign import (
    RESULTS,
    RUNS,
    SAC_CHANGES,
    SEED,
    STATE,
    STUDY_SEED,
    TASKS,
    TD3_CHANGES,
    Run,
    read_rows,
)
from covey.evaluation.improvement import improvement_interval
from covey.evaluation.stats import iqm, iqm_interval
from covey.plots.style import COLOURS, INK, empty_figure, set_steps_axis, style_axes, write_figure

PAGE = Path("docs/learning-quality.md")
IMAGES = Path("docs/images")
LONG = ", 1M steps"
BEGIN = "<!-- begin: written by `python -m benchmarks.quality` -->"
END = "<!-- end -->"
STEPS = (100_000, 200_000, 1_000_000)
"""The steps of the tables."""
NEAR = 0.02
"""How far, relatively, the step of a published value may be from the step of a table."""
STUDY_TASKS = {"cheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}
WEIGHTS = " (PyTorch's initial weights)"
SAC_STUDY = {
    "covey, the campaign's run": "sac-cheetah",
    "SBX, the same settings: `python -m benchmarks.peers.curve sbx sac HalfCheetah-v5 --seed 1000`": (
        "study-sac-cheetah-sbx"
    ),
    f"covey with the rate of both publications: `{SAC_CHANGES['lr']} --seed 1000`": "study-sac-cheetah-lr",
    f"covey with Tianshou's settings: `{SAC_CHANGES['tianshou']} --seed 1000`": "study-sac-cheetah-tianshou",
}
"""The rows of the study of SAC, and their files."""


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run.

    Args:
        steps: [points].
        seeds: [S].
        returns: [points, S]; NaN where a seed has no evaluation.
        seconds: [points], the mean wall time of a seed, or NaN.
        repeated: [points], the mean share of repeated actions, or NaN.
    """

    steps: np.ndarray
    seeds: np.ndarray
    returns: np.ndarray
    seconds: np.ndarray
    repeated: np.ndarray

    def whole(self) -> "Curve":
        """Returns the part of the curve that all seeds have reached."""
        keep = ~np.isnan(self.returns).any(axis=1)
        return Curve(self.steps[keep], self.seeds, self.returns[keep], self.seconds[keep], self.repeated[keep])

    def at(self, step: int) -> np.ndarray | None:
        """Returns the returns [S] of the evaluation at a step, or None if it is not whole."""
        found = self.index(step)
        if found is None or np.isnan(self.returns[found]).any():
            return None
        return self.returns[found]

    def index(self, step: int) -> int | None:
        """Returns the index of the evaluation at a step, or at the end of the block with it: at most 0.1 % later."""
        found = np.flatnonzero((self.steps >= step) & (self.steps <= step + step // 1000))
        return int(found[0]) if found.size else None


@dataclass(frozen=True)
class Published:
    """A published return: mean and standard deviation over seeds."""

    method: str
    task: str
    version: str
    step: int
    mean: float
    std: float
    seeds: int
    source: str

    def __str__(self) -> str:
        return f"{number(self.mean)} ± {number(self.std)}"


def read_curve(path: Path) -> Curve | None:
    """Reads a file of step, seed, return and perhaps seconds and repeated; None if it does not exist or is empty."""
    rows = read_rows(path)
    if not rows:
        return None
    steps = sorted({int(row["step"]) for row in rows})
    seeds = sorted({int(row["seed"]) for row in rows})
    columns = {name: np.full((len(steps), len(seeds)), np.nan) for name in ("return", "seconds", "repeated")}
    for row in rows:
        where = steps.index(int(row["step"])), seeds.index(int(row["seed"]))
        for name, values in columns.items():
            values[where] = float(row.get(name) or "nan")
    seconds, repeated = (_mean(columns[name]) for name in ("seconds", "repeated"))
    return Curve(np.array(steps), np.array(seeds), columns["return"], seconds, repeated)


def _mean(values: np.ndarray) -> np.ndarray:
    """Returns the means over seeds [points], without the seeds that have no value."""
    known = ~np.isnan(values)
    counts = known.sum(axis=1)
    return np.where(counts > 0, np.where(known, values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)


def read_published(results: Path) -> list[Published]:
    """Reads the published values; their standard deviations divide by the number of seeds."""
    return [
        Published(
            row["method"],
            row["task"],
            row["version"],
            int(row["step"]),
            float(row["mean"]),
            float(row["std"]),
            int(row["seeds"]),
            row["source"],
        )
        for row in read_rows(results / "published.csv")
    ]


def paired_difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Returns the mean difference of pairs, and its standard error (NaN for one pair)."""
    difference = ours - theirs
    if difference.size < 2:
        return float(difference.mean()), float("nan")
    return float(difference.mean()), float(difference.std(ddof=1) / difference.size**0.5)


def number(value: float) -> str:
    """Formats a return: whole numbers with thousands separators, never -0."""
    return "-" if np.isnan(value) else f"{value:z,.0f}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]], text: int = 1) -> Iterator[str]:
    """Yields the lines of a Markdown table; the first `text` columns are text, the others are numbers."""
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"{'|---' * text}{'|---:' * (len(names) - text)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


@dataclass(frozen=True)
class Results:
    """All results: the curves of the campaign by name, how far each run got, and the published values."""

    folder: Path
    curves: dict[str, Curve]
    state: dict[str, dict[str, str]]
    published: list[Published]

    def runs(self, task: str) -> list[Run]:
        return [run for run in RUNS.values() if run.task == task]

    def returns(self, name: str, step: int) -> np.ndarray | None:
        curve = self.curves.get(name)
        return None if curve is None else curve.at(step)

    def values(self, task: str, step: int) -> list[Published]:
        """Returns the published values of a task near a step."""
        short = TASKS[task].rsplit("-", 1)[0]
        return [x for x in self.published if x.task == short and abs(x.step - step) <= NEAR * step]


def read_results(folder: Path = RESULTS) -> Results:
    """Reads every file of results."""
    found = {name: read_curve(folder / f"{name}.csv") for name in RUNS}
    curves = {name: curve for name, curve in found.items() if curve is not None}
    state = {row["name"]: row for row in read_rows(folder / STATE)}
    return Results(folder, curves, state, read_published(folder))


def describe(returns: np.ndarray) -> list[str]:
    """Returns the cells mean, IQM and interval, and each seed's return."""
    centre, low, high = (float(x) for x in iqm_interval(returns))
    interval = f"{number(low)} to {number(high)}" if returns.size > 1 else "-"
    return [number(returns.mean()), number(centre), interval, ", ".join(number(x) for x in returns)]


def duration(seconds: float) -> str:
    return "-" if np.isnan(seconds) else f"{seconds / 3600:.1f} h"


def reached(results: Results, run: Run) -> str:
    """Tells how far a run got, if it did not get to its end."""
    curve, known = results.curves.get(run.name), results.state.get(run.name)
    if curve is None:
        return "not run yet"
    if known is None or known["finished"] == "yes":
        return ""
    if run.is_peer:  # one seed after the other
        return f"seed {curve.seeds.size} of {run.seeds} not finished"
    return f"stopped at {int(known['reached']):,} of {run.steps:,}"


def our_rows(results: Results, run: Run, step: int) -> Iterator[str]:
    """Yields the cells of a run at a step, or at the last evaluation before it."""
    curve, short = results.curves.get(run.name), reached(results, run)
    yield run.label + (f" ({short})" if short else "")
    if curve is None:
        yield from (f"{step:,}", *["-"] * 6)
        return
    where, returns = curve.index(step), curve.at(step)
    is_there = returns is not None
    if where is None or returns is None:
        whole = curve.whole()
        where, returns = int(np.flatnonzero(curve.steps == whole.steps[-1])[0]), whole.returns[-1]
    at = int(curve.steps[where])
    yield f"{at:,}" if is_there else f"**{at:,}** instead of {step:,}"
    yield from describe(returns)
    yield duration(float(curve.seconds[where]))
    yield "-" if np.isnan(curve.repeated[where]) else f"{curve.repeated[where]:.2f}"


def our_table(results: Results, task: str) -> Iterator[str]:
    """Yields the table of our runs of a task."""
    heads = ["run", "steps", "mean", "IQM", "95 % interval", "each seed", "hours per seed", "repeated"]
    rows = [list(our_rows(results, run, step)) for step in STEPS for run in results.runs(task) if step <= run.steps]
    if task != "lander":  # only TAAC repeats actions
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    yield from table(heads, rows)


def published_table(results: Results, task: str) -> Iterator[str]:
    """Yields the table of published values of a task."""
    steps = (100_000, 200_000, 300_000, 1_000_000)
    rows: dict[str, list[str]] = {}
    for i, step in enumerate(steps):
        for x in results.values(task, step):
            cells = rows.setdefault(x.method, [x.method, x.version, f"{x.seeds}", *["-"] * len(steps)])
            cells[3 + i] = str(x)
    if rows:
        yield from table(("published, mean ± std", "version", "seeds", *(f"{step:,}" for step in steps)), rows.values())
    for row in read_rows(results.folder / "published-repeats.csv"):
        if row["task"] == TASKS[task].rsplit("-", 1)[0]:
            where = f"{row['task']}-{row['version']}"
            yield f"Published share of repeated actions: {row['method']} {row['repeated']}, {where} ({row['source']})."
            yield ""


def task_sections(results: Results) -> Iterator[str]:
    """Yields a section per task: figure, our results, published results."""
    for task, name in TASKS.items():
        yield f"### {name}"
        yield ""
        if any(run.name in results.curves for run in results.runs(task)):
            yield f"![learning curves on {name}](images/{picture(task)})"
        else:
            yield "No run of this task has begun yet."
        yield ""
        yield from our_table(results, task)
        yield from published_table(results, task)


def verdict(mean: float, value: Published) -> str:
    """Tells where a mean lies beside a published mean ± its standard deviation."""
    if mean > value.mean + value.std:
        return "above"
    return "inside" if mean >= value.mean - value.std else "**below**"


def beside_published(results: Results) -> Iterator[str]:
    """Yields the comparison of TD3 and SAC with the published curves that have the same step."""
    rows: list[list[str]] = []
    for task in ("cheetah", "hopper", "walker"):
        for agent in ("td3", "sac"):
            for step in (100_000, 200_000):
                for value in results.values(task, step):
                    if not value.method.startswith(agent.upper()):
                        continue
                    returns = results.returns(f"{agent}-{task}", step)
                    ours = ["-", "not there yet"]
                    if returns is not None:
                        ours = [number(returns.mean()), verdict(float(returns.mean()), value)]
                    name = f"{agent.upper()}, {TASKS[task]}, {step:,}"
                    rows.append([name, f"{value.method}, {value.version}", str(value), *ours])
    yield "### TD3 and SAC beside published curves"
    yield ""
    yield "*inside*: our mean is within the published mean ± its standard deviation over seeds."
    yield ""
    yield from table(("", "published by", "mean ± std", "covey, mean", "covey is"), rows, text=2)


def pairs() -> Iterator[tuple[str, str, int]]:
    """Yields the comparisons of two runs at a step."""
    for task in ("cheetah", "hopper", "walker"):
        for step in (100_000, 200_000):
            yield f"sac-{task}", f"td3-{task}", step
    for name, run in RUNS.items():
        if run.part == "c":
            yield name, f"sac-{run.task}", 100_000
    for library in ("sb3", "sbx"):
        yield "sac-hopper", f"{library}-sac-hopper", 100_000
    yield "taac-lander", "sac-lander", 100_000


def improvements(results: Results) -> Iterator[str]:
    """Yields the table of probabilities of improvement."""
    rows: list[list[str]] = []
    for name, other, step in pairs():
        ours, theirs = results.returns(name, step), results.returns(other, step)
        cells = ["-", "not there yet"]
        if ours is not None and theirs is not None:
            centre, low, high = improvement_interval(ours, theirs)
            cells = [number(float(iqm(ours) - iqm(theirs))), f"{centre:.2f} ({low:.2f} to {high:.2f})"]
        label = f"{RUNS[name].label} over {RUNS[other].label}, {TASKS[RUNS[name].task]}"
        rows.append([label, f"{step:,}", *cells])
    yield "### Probability of improvement"
    yield ""
    yield from table(("A over B", "steps", "IQM of A - IQM of B", "P(A > B) (95 % interval)"), rows)


def equal_time(results: Results) -> Iterator[str]:
    """Yields the comparison of recipes with SAC after the same wall time."""
    rows: list[list[str]] = []
    for name, run in RUNS.items():
        if run.part != "c":
            continue
        ours, plain = results.curves.get(name), results.curves.get(f"sac-{run.task}")
        cells = ["-", "-", "-", "-", "not there yet"]
        if ours is not None and plain is not None:
            ours, plain = ours.whole(), plain.whole()
            in_time = np.flatnonzero(plain.seconds <= ours.seconds[-1])
            if in_time.size:
                at = int(in_time[-1])
                centre, low, high = improvement_interval(ours.returns[-1], plain.returns[at])
                means = [number(float(ours.returns[-1].mean())), number(float(plain.returns[at].mean()))]
                improvement = f"{centre:.2f} ({low:.2f} to {high:.2f})"
                cells = [
                    duration(float(ours.seconds[-1])),
                    means[0],
                    f"{int(plain.steps[at]):,}",
                    means[1],
                    improvement,
                ]
        rows.append([f"{run.label}, {TASKS[run.task]}", *cells])
    yield "### Recipes at equal wall time"
    yield ""
    yield "SAC's last evaluation within the time that the recipe took, hours per seed on the same core."
    yield ""
    yield from table(("", "time", "its mean", "SAC's steps", "SAC's mean", "P(recipe > SAC)"), rows)


def study_rows(folder: Path, task: str) -> Iterator[list[str]]:
    """Yields the rows of the study of TD3 on a task: each change beside the base, paired by seed."""
    base = read_curve(folder / f"study-td3-{task}-base.csv")
    for change in TD3_CHANGES:
        curve = read_curve(folder / f"study-td3-{task}-{change}.csv")
        if base is None or curve is None or change == "base":
            continue
        steps = [step for step in curve.whole().steps if step > 0 and step in base.whole().steps]
        seeds = sorted(set(curve.seeds) & set(base.seeds))
        ours, theirs = (x.returns[np.ix_(np.isin(x.steps, steps), np.isin(x.seeds, seeds))] for x in (curve, base))
        last, last_error = paired_difference(ours[-1], theirs[-1])
        mean, mean_error = paired_difference(ours.mean(axis=0), theirs.mean(axis=0))
        yield [
            f"`{TD3_CHANGES[change]}`{WEIGHTS * (change == 'uniform')}",
            f"{len(seeds)}",
            f"{steps[-1]:,}",
            number(theirs[-1].mean()),
            number(ours[-1].mean()),
            f"{last:+,.0f} ({last_error:,.0f})",
            f"{mean:+,.0f} ({mean_error:,.0f})",
        ]


def study(results: Results) -> Iterator[str]:
    """Yields the study of plain TD3: one change at a time."""
    yield "## Why plain TD3 lagged: a study, one change at a time"
    yield ""
    yield "The base is `covey train td3 --env gymnasium:ENV --preset off --agent.networks.weights lecun --seed 1000"
    yield "--seeds 8 --episodes 10` with an evaluation every 5,000 steps: flax's initial weights, the default then,"
    yield "1,000 random steps, learning rates of 3e-4, noise of 0.1, and targets that move at every second update. Each"
    yield "row is the base and one change. The rows ran at commit 957f8f2; those with orthogonal weights or two changes"
    yield "at 2f17de3, whose base was compared with it on HalfCheetah at 5,000 steps only, and is equal there."
    yield ""
    yield "Differences from the base, paired by seed, with their standard errors: at the last step that both have, and"
    yield "of the mean over all evaluations that both have after step 0."
    yield ""
    heads = ("change", "seeds", "step", "base", "with it", "difference", "difference, all evaluations")
    for task, name in STUDY_TASKS.items():
        yield f"**{name}**"
        yield ""
        yield from table(heads, study_rows(results.folder, task))
        missing = [
            f"`{change}`" for change in TD3_CHANGES if not (results.folder / f"study-td3-{task}-{change}.csv").exists()
        ]
        if missing:
            yield f"Not run yet: {', '.join(missing)}."
            yield ""


def sac_study(results: Results) -> Iterator[str]:
    """Yields the study of SAC on HalfCheetah: other settings, and another library with the same settings."""
    rows: list[list[str]] = []
    for label, name in SAC_STUDY.items():
        curve = results.curves.get(name) or read_curve(results.folder / f"{name}.csv")
        if curve is None:
            rows.append([label, "-", *["not run yet"] * 3])
            continue
        cells = [found for step in (50_000, 100_000) if (found := curve.at(step)) is not None]
        means = [number(x.mean()) for x in cells] + ["-"] * (2 - len(cells))
        each = ", ".join(number(x) for x in cells[-1]) if cells else "-"
        rows.append([label, f"{curve.seeds.size}", *means, each])
    yield "## SAC on HalfCheetah beside other settings"
    yield ""
    yield from table(("", "seeds", "50,000", "100,000", "each seed, last"), rows)


def precision(results: Results) -> Iterator[str]:
    """Yields the study of bfloat16 beside float32."""
    rows: list[list[str]] = []
    for agent in ("td3", "sac"):
        for task in STUDY_TASKS:
            name = f"{agent.upper()}, {TASKS[task]}"
            stem = results.folder / f"study-precision-{agent}-{task}"
            curves = [read_curve(stem.with_name(f"{stem.name}-{kind}.csv")) for kind in ("float32", "bfloat16")]
            plain, rounded = (None if curve is None else curve.at(50_000) for curve in curves)
            if plain is None or rounded is None:
                rows.append([name, *["-"] * 4, "not there yet"])
                continue
            difference, error = paired_difference(rounded, plain)
            centre, low, high = improvement_interval(rounded, plain)
            rows.append(
                [
                    name,
                    f"{plain.size}",
                    number(plain.mean()),
                    number(rounded.mean()),
                    f"{difference:+,.0f} ({error:,.0f})",
                    f"{centre:.2f} ({low:.2f} to {high:.2f})",
                ]
            )
    yield "## bfloat16 beside float32"
    yield ""
    yield "`covey train AGENT --precision bfloat16 --env gymnasium:TASK --steps 50000 --seed 1000 --seeds 5`, and the"
    yield "same with float32: mean returns at 50,000 steps, their difference with its standard error, paired by seed,"
    yield "and the probability that a seed with bfloat16 is better. TD3 learns from step 25,000 on, SAC from 10,000."
    yield ""
    heads = ("", "seeds", "float32", "bfloat16", "difference", "P(bfloat16 > float32) (95 % interval)")
    yield from table(heads, rows)


def progress(results: Results) -> Iterator[str]:
    """Yields the list of runs: how far each got, and its command."""
    yield "## The runs"
    yield ""
    yield f"In the order in which they are made; seeds from {SEED}. `python -m benchmarks.campaign` makes them,"
    yield f"and with `--studies` those of the studies, with seeds from {STUDY_SEED}."
    yield ""
    rows: list[list[str]] = []
    for run in RUNS.values():
        curve, known = results.curves.get(run.name), results.state.get(run.name, {})
        far = f"{int(known['reached']):,}" if known else "-" if curve is None else f"{int(curve.steps[-1]):,}"
        commit = f"`{known['commit']}`" if known.get("commit") else "-"
        rows.append([f"`{run.name}`: `{run.command}`", far, f"{run.steps:,}", commit])
    yield from table(("run", "reached", "steps", "commit"), rows)
    waiting = [f"`{name}`" for name in RUNS if name not in results.curves]
    if waiting:
        yield from textwrap.wrap(f"Not run yet: {', '.join(waiting)}.", 120, break_on_hyphens=False)
        yield ""


def sources(results: Results) -> Iterator[str]:
    """Yields where the published values come from."""
    yield "## Published values"
    yield ""
    yield "All of them are in `benchmarks/results/published.csv`. A standard deviation is over seeds."
    yield ""
    found: dict[tuple[str, str, int], str] = {}
    for value in results.published:
        place = value.source.replace(f"{value.task}-{value.version}", "TASK")
        found.setdefault((value.method, value.version, value.seeds), place)
    rows = [[method, version, f"{seeds}", f"`{place}`"] for (method, version, seeds), place in found.items()]
    yield from table(("method", "version", "seeds", "file"), rows, text=4)


def render(results: Results) -> str:
    """Returns the generated part of the page."""
    lines = ["## Results", ""]
    for part in (
        task_sections,
        beside_published,
        improvements,
        equal_time,
        study,
        sac_study,
        precision,
        progress,
        sources,
    ):
        lines += part(results)
    return "\n".join(lines).strip() + "\n"


def replace_generated(page: str, text: str, begin: str = BEGIN) -> str:
    """Returns the page with the text between its markers replaced."""
    before, _, rest = page.partition(begin)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"The page needs the markers {begin} and {END}.")
    return f"{before}{begin}\n\n{text}\n{END}{after}"


def picture(task: str) -> str:
    return f"learning-{task}.png"


def colour_of(run: Run) -> str:
    """Returns the colour of a run; a longer run of the same agent has the same one."""
    labels = list(dict.fromkeys(x.label.removesuffix(LONG) for x in RUNS.values() if x.task == run.task))
    return COLOURS[labels.index(run.label.removesuffix(LONG)) % len(COLOURS)]


def draw_curves(axes: Any, results: Results, runs: list[Run]) -> None:
    for run in runs:
        curve = results.curves[run.name].whole()
        colour, label = colour_of(run), f"{run.label}, {curve.seeds.size} seed{'s' * (curve.seeds.size > 1)}"
        if curve.seeds.size > 1:
            centre, low, high = iqm_interval(curve.returns.T)
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
        else:
            centre = curve.returns[:, 0]
        axes.plot(curve.steps, centre, color=colour, linewidth=1.6, label=label)


def draw_published(axes: Any, results: Results, task: str, longest: int) -> None:
    """Draws published values at their steps: TD3 and SAC with their deviation and colour, the others in grey."""
    short = TASKS[task].rsplit("-", 1)[0]
    # A mark is drawn beside its step, which would mislead near the start of a long axis.
    values = [x for x in results.published if x.task == short and 0.15 * longest < x.step <= longest * (1 + NEAR)]
    markers = dict(zip(dict.fromkeys(x.method for x in results.published), "osDv^<>PX*hd", strict=False))
    colours = {agent: colour_of(RUNS[f"{agent.lower()}-{task}"]) for agent in ("TD3", "SAC") if task != "lander"}
    methods = list(dict.fromkeys(x.method for x in values))
    for i, method in enumerate(methods):
        aside = (i - (len(methods) - 1) / 2) * longest * 0.004  # so that marks of the same step do not hide each other
        mine = [x for x in values if x.method == method]
        colour = colours.get(method.split(" ")[0], "#9aa3ab")
        is_baseline = method.split(" ")[0] in colours
        axes.errorbar(
            [x.step + aside for x in mine],
            [x.mean for x in mine],
            yerr=[x.std for x in mine] if is_baseline else None,
            fmt=markers[method],
            markersize=5,
            markerfacecolor="white" if is_baseline else colour,
            color=colour,
            linewidth=1,
            capsize=2,
            alpha=0.9,
            label=f"{method}, {mine[0].version}",
        )


def draw(results: Results, task: str, out: Path) -> None:
    """Draws the curves of a task that has begun, and published values. Long runs get a panel of their own."""
    begun = [run for run in results.runs(task) if run.name in results.curves]
    groups = [[run for run in begun if (run.steps > 200_000) == long] for long in (False, True)]
    groups = [group for group in groups if group]
    figure = empty_figure(7.2, 1.7 + 3.4 * len(groups))
    for i, group in enumerate(groups):
        axes = style_axes(figure.add_subplot(len(groups), 1, i + 1))
        set_steps_axis(axes)
        draw_published(axes, results, task, max(run.steps for run in group))
        draw_curves(axes, results, group)
        axes.set_ylabel("return", color=INK)
        if i == 0:
            axes.set_title(f"{TASKS[task]}: IQM over seeds and its 95 % bootstrap interval", color=INK, fontsize=10)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    write_figure(figure, out)
    Image.open(out).convert("RGB").quantize(64).save(out, optimize=True)  # a third of the size


def main() -> None:
    results = read_results()
    for task in TASKS:
        if any(run.name in results.curves for run in results.runs(task)):
            draw(results, task, IMAGES / picture(task))
            print(IMAGES / picture(task))
    PAGE.write_text(replace_generated(PAGE.read_text(), render(results)))
    print(PAGE)


if __name__ == "__main__":
    main()
