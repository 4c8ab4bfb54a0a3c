"""The commands for an existing run: eval, doctor, plot, skills, plan, lineage, replay, video, report."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from covey.cli.arguments import joined, numbers, parse, usage
from covey.errors import require


@dataclass(frozen=True)
class EvalOptions:
    """Evaluates the best policy of a run, on start states that training never used."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 100
    """Episodes to run."""
    seed: int = 0
    """Seed of the start states."""


def eval(arguments: list[str]) -> None:
    from covey.api import load
    from covey.storage.atomic import replace_text
    from covey.storage.folder import disk_errors

    options = parse(EvalOptions, arguments, "eval")
    run = load(options.run)
    result = run.evaluate(options.episodes, options.seed)
    file = run.path / "evaluation" / f"eval-{options.episodes}-seed-{options.seed}.json"
    print(f"{run.config.algorithm} on {run.config.env}: {result}")
    with disk_errors(run.path):
        replace_text(file, json.dumps(result.as_json(), indent=2) + "\n")
    print(f"per episode: {file}")


@dataclass(frozen=True)
class DoctorOptions:
    """Says what looks wrong in a run, worst first: in its metrics, its networks and its replay."""

    run: tyro.conf.Positional[Path]
    """The run folder, also of a run that is still training."""
    json: bool = False
    """Print the findings as JSON."""


def doctor(arguments: list[str]) -> None:
    from covey.api import load
    from covey.cli.help import wrapped

    options = parse(DoctorOptions, arguments, "doctor")
    run = load(options.run)
    found = run.doctor()
    if options.json:
        print(json.dumps(found.as_json(), indent=2))
        return
    print(f"{run.config.algorithm} on {run.config.env}, step {found.step:,} of {found.steps:,}")
    print("\n".join(wrapped(line, "  ", "") for line in str(found).splitlines()))


@dataclass(frozen=True)
class PlotOptions:
    """Plots a metric of one or more runs over environment steps."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path | None = None
    """The PNG to write; by default media/curve.png of a single run, or curves.png here."""
    metric: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Metrics by their names in metrics.jsonl, each in its own panel; by default the return, or skills' information."""
    label: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The label of a run in the legend, once for each run; by default its --name, or what differs between the runs."""


def plot(arguments: list[str]) -> None:
    from covey.plots.curves import curve, plot_curves, plot_metrics
    from covey.plots.labels import labels, title
    from covey.storage.folder import disk_errors
    from covey.storage.metrics import read_run_metrics

    options = parse(PlotOptions, arguments, "plot")
    require(bool(options.runs), "Name a run folder, for example: covey plot runs/pendulum-td3-0")
    require(
        len(options.label) in (0, len(options.runs)),
        f"There are {len(options.runs)} runs and {len(options.label)} labels. Give --label once for each run.",
    )
    single = len(options.runs) == 1
    out = options.out or (options.runs[0] / "media" / "curve.png" if single else Path("curves.png"))
    require(out.suffix == ".png", f"--out must name a PNG, for example {out / 'curve.png'}, not {out}.")
    configs = [_config(run) for run in options.runs]
    metrics = [name for names in options.metric for name in names] or [_curve_of(configs)]
    names = options.label or labels(configs, [run.name for run in options.runs])
    with disk_errors(out.parent):
        found = {metric: [read_run_metrics(run, metric) for run in options.runs] for metric in metrics}
        panels = {
            metric: [curve(each, metric, name) for name, each in zip(names, runs, strict=True)]
            for metric, runs in found.items()
        }
        heading = title(configs, metrics[0])
        if len(panels) == 1:
            plot_curves(panels[metrics[0]], out, metrics[0], heading)
        else:
            plot_metrics(panels, out, heading)
    print(f"{out}\n{out.with_suffix('.csv')}")


def _config(run: Path) -> dict[str, Any]:
    """Returns the configuration of a run; empty if it has none."""
    from covey.storage.folder import RunFolder

    folder = RunFolder(run)
    return folder.read_config() if folder.has_config() else {}


def _curve_of(configs: list[dict[str, Any]]) -> str:
    """Returns the metric of the learning curve of the runs' agents, if it is the same for all."""
    from covey import agents

    found = {agents.REGISTRY[c["algorithm"]].curve for c in configs if c.get("algorithm") in agents.REGISTRY}
    return found.pop() if len(found) == 1 else "eval/return"


@dataclass(frozen=True)
class SkillsOptions:
    """Plots the trajectories of every skill of a run, and writes their ends as CSV; or films the skills."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The file to write; by default media/skills.png of the run, .mp4 (without ffmpeg .gif) or .html."""
    video: bool = False
    """Write a film of several skills side by side instead."""
    page: bool = False
    """Write a page on which you pick a skill and see it instead."""
    skills: tuple[int, ...] = ()
    """The numbers of the skills in the film or on the page; by default those that represent all."""
    seed: int = 0
    """Seed of the start state in the film or on the page."""


def skills(arguments: list[str]) -> None:
    from covey.api import load, skills_page
    from covey.storage.folder import disk_errors

    options = parse(SkillsOptions, arguments, "skills")
    filmed = options.video or options.page
    usage(filmed or not options.skills, "--skills chooses those of a film or a page: add --video or --page.")
    usage(not (options.out and options.video and options.page), "--out names one file: give --video or --page.")
    out = options.out or options.run / "media" / "skills.png"
    require(
        filmed or out.suffix == ".png",
        f"--out must name a PNG, for example {out / 'curve.png'}, not {out}. A film needs --video, and a page --page.",
    )
    run = load(options.run)
    how = {"skills": options.skills or None, "seed": options.seed}
    with disk_errors(out.parent):
        if options.video:
            print(run.film_skills(options.out, **how))
        if options.page:
            print(skills_page(run, options.out, **how))
        if not filmed:
            run.plot_skills(out)
            print(f"{out}\n{out.with_suffix('.csv')}")


def _plan_options() -> Any:
    """Returns the options of `covey plan`. Imported late, because the planner imports jax."""
    from covey.agents.skills.goals import Planning

    @dataclass(frozen=True)
    class PlanOptions:
        """Reaches goals with the skills of a run, without further training."""

        run: tyro.conf.Positional[Path]
        """The run folder."""
        planning: Planning = field(default_factory=Planning)
        """Settings of the planner of DADS."""
        goal: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
        """A goal in the descriptor's coordinates, such as 3,4; several are visited in turn in one episode."""
        random: int = 0
        """Instead of --goal: the number of episodes, each with a random goal."""
        within: float | None = None
        """Greatest distance of random goals from the middle of the descriptor's limits."""
        radius: float | None = None
        """Distance at which a goal counts as reached; by default 5 % of the width of the descriptor's limits."""
        steps: int = 0
        """Steps of the episode; by default the environment's episode length for each goal."""
        seed: int = 0
        """Seed of the start state and of random goals."""
        out: Path | None = None
        """The PNG to write; by default media/plan.png of the run. With --goal, a GIF is written beside it."""

    return PlanOptions


def plan(arguments: list[str]) -> None:
    import numpy as np

    from covey.api import load
    from covey.run.skills.plans import goals_outside
    from covey.storage.folder import disk_errors

    # A goal may begin with a minus, which must not look like a flag.
    options = parse(_plan_options(), joined(arguments, "--goal"), "plan")
    out = options.out or options.run / "media" / "plan.png"
    require(out.suffix == ".png", f"--out must name a PNG, for example {out / 'curve.png'}, not {out}.")
    usage(bool(options.goal) != bool(options.random), "Give goals, as in --goal 3,4 --goal -2,1, or --random 20.")
    usage(options.within is None or bool(options.random), "--within is for random goals: add --random 20.")
    require(options.steps >= 0, f"--steps must not be negative, not {options.steps}.")
    goals = [numbers(text) for text in options.goal]
    run, how = load(options.run), {"planning": options.planning, "radius": options.radius, "seed": options.seed}
    with disk_errors(out.parent):
        if options.goal:
            plans = [run.plan(goals, out, steps=options.steps, **how)]
        else:
            plans = run.random_plans(options.random, out, within=options.within, **how)
    for plan in plans:
        for goal, step in zip(plan.goals, plan.steps, strict=True):
            where = ", ".join(f"{x:.2f}" for x in goal)
            print(f"goal ({where}): {f'reached at step {step}' if step >= 0 else 'not reached'}")
    if note := goals_outside(run.best.program, np.concatenate([plan.goals for plan in plans])):
        print(note)
    reached = [there for plan in plans for there in plan.reached]
    print(f"{sum(reached)} of {len(reached)} goals reached")
    print("\n".join(str(out.with_suffix(end)) for end in ([".png", ".gif"] if options.goal else [".png"])))


@dataclass(frozen=True)
class LineageOptions:
    """Plots a population: its lineage, its hyper-parameters and its fitness."""

    run: tyro.conf.Positional[Path]
    """The run folder."""


def lineage(arguments: list[str]) -> None:
    from covey.api import load
    from covey.storage.folder import disk_errors

    options = parse(LineageOptions, arguments, "lineage")
    with disk_errors(options.run):
        print("\n".join(map(str, load(options.run).plot_population())))


@dataclass(frozen=True)
class ReplayOptions:
    """Saves the replay of a run's newest checkpoint as a file for `covey train AGENT --replay FILE`."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The file to write; by default replay.safetensors in the run folder."""


def replay(arguments: list[str]) -> None:
    from covey.api import load
    from covey.storage.replay_file import open_replay

    options = parse(ReplayOptions, arguments, "replay")
    file = open_replay(load(options.run).save_replay(options.out))
    members = "1 member" if file.members == 1 else f"{file.members} members"
    print(f"{file.algorithm} on {file.environment}, step {file.step:,}: {file.steps:,} steps of {members}")
    print(file.path)


@dataclass(frozen=True)
class VideoOptions:
    """Records an episode of the best policy of a run."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The file to write: .mp4, .gif, or .html for a Brax run; by default media/policy.mp4 of the run."""
    steps: int = 0
    """Steps of the episode; by default the environment's episode length."""
    seed: int = 0
    """Seed of the start state."""


def video(arguments: list[str]) -> None:
    from covey.api import load
    from covey.storage.folder import disk_errors

    options = parse(VideoOptions, arguments, "video")
    run = load(options.run)
    with disk_errors((options.out or run.folder.media / "policy.mp4").parent):
        print(run.video(options.out, steps=options.steps, seed=options.seed))


@dataclass(frozen=True)
class ReportOptions:
    """Writes a page about one or more runs: summary, curves, film, configuration, and a comparison of several runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path | None = None
    """The HTML file to write; by default report.html of a single run, or report.html here."""


def report(arguments: list[str]) -> None:
    from covey.web.report import write_report

    options = parse(ReportOptions, arguments, "report")
    print(write_report(options.runs, options.out, examine=True))
