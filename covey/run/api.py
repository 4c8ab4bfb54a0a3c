"""What a Python user calls: `covey.train`, `covey.load`, and the run they return."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from covey import agents, envs
from covey.errors import CoveyError, require
from covey.population.crew import Alone, Crew
from covey.run.cache import hushed, use_cache
from covey.run.checkpoint import Store, restore
from covey.run.cluster import Cluster, Connection, connected, train_islands
from covey.run.config import RunConfig, default_config
from covey.run.devices import use_devices
from covey.run.fit import BEST, REPLAY, WRITTEN, Session
from covey.run.folder import RunFolder, new_folder, replace_text, writing
from covey.run.islands import reached
from covey.run.media import GIF_FRAMES, MP4_FRAMES, Episode, record, write_gif
from covey.run.plots import plot_curves, plot_episode
from covey.run.population_plots import plot_fitness, plot_hypers, plot_lineage, read_lineage
from covey.run.presets import describe, flat, preset_config
from covey.run.program import ANIMATION, FINAL_EVALUATION, Program, build
from covey.run.progress import Reporter
from covey.run.replay_file import open_replay, write_replay
from covey.run.sinks import finite, read_metrics
from covey.run.skills import (
    Plan,
    Planning,
    can_plan,
    draw_plans,
    draw_skills,
    near,
    plan_episode,
    planner,
    random_plans,
)
from covey.run.stats import Interval, mean_interval
from covey.run.video import film_writer
from covey.training.evaluate import Episodes
from covey.training.policy import TrainedPolicy

ALONE, HERE, MOST_PATH = Alone(), Cluster(), 4096
RESUMABLE = ("steps", "evaluations", "episodes", "checkpoint_minutes", "workers", "hyper", "devices")


@dataclass(frozen=True)
class Evaluation:
    """The mean return with its 95 % interval over episodes, and what each episode gave."""

    mean: Interval
    episodes: Episodes
    skills: dict[str, float]
    """What the skills are worth, where there are any."""

    def __str__(self) -> str:
        means = {"length": f"{np.mean(self.episodes.length):.0f}"}
        means |= {name: f"{np.mean(x):.2f}" for name, x in self.episodes.marks.items()}
        found = "".join(f", mean {name} {value}" for name, value in means.items())
        skills = "".join(f"\n  {name:<18} {value:.3g}" for name, value in self.skills.items())
        return f"return {self.mean} over {self.episodes.returns.size} episodes{found}{skills}"


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: RunFolder
    config: RunConfig[Any, Any]

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def program(self) -> Program:
        """The program of a single policy of the run."""
        single = dataclasses.replace(self.config, seeds=1, pbt=None, devices=1, engine="local", islands=1)
        return build(single)

    def metrics(self) -> dict[str, dict[str, list[float]]]:
        """Every logged number: name -> step, wall, member, value."""
        return read_metrics(self.folder.metrics)

    def policy(self, seed: int = 0) -> TrainedPolicy:
        """The best policy of the run, ready to act."""
        program = self.program
        with hushed():
            return TrainedPolicy(program.agent, envs.make(self.config.env).spec, *self._best(program), seed)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Greedy episodes of the best policy, on start states that neither training nor its evaluations used."""
        require(episodes > 0, f"--episodes must be positive, not {episodes}.")
        program = self.program
        state, hyper = jax.tree.map(lambda x: x[None], self._best(program))
        found = program.evaluate(state, hyper, program.stream(FINAL_EVALUATION, seed), episodes)
        program.close()
        found = jax.tree.map(lambda x: x[0], found)
        skills = {name: float(x[0]) for name, x in program.measure(state, hyper).items()}
        if program.skills is not None and can_plan(program):
            plans = self.random_plans(seed=seed)
            skills["success"] = float(np.mean([all(plan.reached) for plan in plans]))
        return Evaluation(mean_interval(np.asarray(found.returns)), found, skills)

    def plot_skills(self, path: Path | None = None) -> Path:
        """The map of the skills: where each leads."""
        program, title = self.program, f"{self.config.algorithm} on {self.config.env}: where skills lead"
        return draw_skills(program, *self._best(program), path or self.folder.media / "skills.png", title)

    def plan(
        self,
        goals: Any,
        path: Path | None = None,
        *,
        planning: Planning | None = None,
        radius: float | None = None,
        seed: int = 0,
        steps: int = 0,
    ) -> Plan:
        """One episode past goals [G, D] in turn, steered by the planner, with its figure and its animation."""
        program = self.program
        policy, radius = planner(program, planning or Planning()), near(program, radius)
        goals = np.asarray(goals, np.float64)
        found, episode = plan_episode(policy, program, *self._best(program), goals, radius, seed, steps)
        figure = path or self.folder.media / "plan.png"
        draw_plans(policy, [found], radius, figure, f"{sum(found.reached)} of {len(goals)} goals reached")
        write_gif(figure.with_suffix(".gif"), program.env, episode)
        return found

    def random_plans(
        self,
        count: int = 20,
        path: Path | None = None,
        *,
        planning: Planning | None = None,
        radius: float | None = None,
        seed: int = 0,
    ) -> list[Plan]:
        """Episodes of the planner with a random goal each; with a path, their figure too."""
        program = self.program
        policy, radius = planner(program, planning or Planning()), near(program, radius)
        require(count > 0, f"--random must be positive, not {count}.")
        plans = random_plans(policy, program, *self._best(program), count, radius, seed)
        if path:
            reached = sum(all(plan.reached) for plan in plans)
            draw_plans(policy, plans, radius, path, f"{reached} of {count} random goals reached")
        return plans

    def animate(self, path: Path | None = None) -> Path:
        """A GIF of one episode of the best policy."""
        program = self.program
        return write_gif(path or self.folder.media / "policy.gif", program.env, self._episode(program, GIF_FRAMES))

    def video(self, path: str | Path | None = None, *, steps: int = 0, seed: int = 0) -> Path:
        """One episode of the best policy as a film: .mp4, .gif or, of a Brax run, .html."""
        require(steps >= 0, f"--steps must not be negative, not {steps}.")
        file = Path(path or self.folder.media / "policy.mp4")
        write = film_writer(file)
        program = self.program
        steps = steps or program.env.spec.episode_length
        return write(file, program.env, self._episode(program, MP4_FRAMES, steps, seed))

    def plot_episode(self, path: Path | None = None) -> Path:
        """The actions over time of the episode that `animate` shows, with what the policy says of each."""
        title = f"{self.config.algorithm} on {self.config.env}: one episode of the best policy"
        return plot_episode(self._episode(self.program), path or self.folder.media / "episode.png", title)

    def _episode(self, program: Program, drawn: int = 0, steps: int = 0, seed: int = 0) -> Episode:
        key = program.stream(ANIMATION, seed)
        return record(program.agent, program.env, *self._best(program), key, steps, drawn)

    def plot(self, path: Path | None = None) -> Path:
        """The learning curve as PNG, and its numbers as CSV beside it: the return, or what skills are learnt by."""
        metric = "skills/information" if agents.entry(self.config.algorithm).skills else "eval/return"
        title = f"{self.config.algorithm} on {self.config.env}"
        return plot_curves([self.path], path or self.folder.media / "curve.png", metric, title)

    def plot_population(self) -> tuple[Path, ...]:
        """Who copied whom, where the hyper-parameters went, and how fit the members were."""
        require(self.config.pbt is not None, f"{self.path} is no population: `covey evolve` makes one.")
        lineage, title = read_lineage(self.folder.lineage), f"{self.config.algorithm} on {self.config.env}"
        label = self.config.fitness
        media, ranges = self.folder.media, {n: (r.low, r.high, r.scale) for n, r in self.config.searched().items()}
        drawn = [plot_lineage(lineage, media / "lineage.png", f"{title}: who copied whom")]
        if ranges:
            drawn.append(plot_hypers(lineage, media / "hypers.png", f"{title}: hyper-parameters", ranges))
        return (*drawn, plot_fitness(lineage, media / "fitness.png", f"{title}: the population", label))

    def save_replay(self, path: str | Path | None = None) -> Path:
        """Writes the replay of the newest intact checkpoint to a file, by default replay.safetensors in the folder.

        `covey.train(..., replay=path)` starts another run with it.
        """
        islands = [str(self.folder.island(number).path) for number in range(self.config.islands)]
        require(
            self.config.islands == 1 or self.folder.whole is not None,
            f"Each island of {self.path} has a replay of its own: save that of {' or '.join(islands)}.",
        )
        states = Store(self.folder.checkpoints, "step")
        self._require_checkpoint(states)
        try:
            arrays, info = states.read_newest(_warn, set_aside=False)
        except OSError as error:
            raise CoveyError(f"The checkpoint was replaced while it was read ({error}). Try again.") from error
        replay, file = build(self.config).loop.trainer.replay, Path(path or self.path / "replay.safetensors")
        about = {"environment": self.config.env, "algorithm": self.config.algorithm, "step": info["step"]}
        write_replay(file, replay, arrays[REPLAY], int(arrays[WRITTEN]), **about)
        return file

    def _require_checkpoint(self, *stores: Store) -> None:
        require(
            any(store.steps() for store in stores),
            f"{self.path} has no checkpoint yet. Wait for its first one, or go on with `covey resume {self.path}`.",
        )

    def _best(self, program: Program) -> tuple[Any, Any]:
        """State and hyper-parameters of the best policy."""
        template = program.template().members
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (template.agent, template.hyper))
        return restore(one, self._best_arrays())

    def _best_arrays(self) -> dict[str, np.ndarray]:
        """From the best checkpoint or, where it is damaged or just being replaced, the copy in that of the training."""
        best, states = Store(self.folder.checkpoints, "best"), Store(self.folder.checkpoints, "step")
        self._require_checkpoint(best, states)
        try:
            return best.read_newest(_warn, set_aside=False)[0]
        except (CoveyError, OSError):
            arrays, info = states.read_newest(_warn, set_aside=False)
        require(bool(info["best"]), f"No evaluation of {self.path} was finite, so it has no best policy.")
        return {name.removeprefix(BEST): x for name, x in arrays.items() if name.startswith(BEST)}


def train(
    algorithm: str,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    preset: bool = True,
    cluster: Cluster = HERE,
    **options: Any,
) -> Run:
    """Trains an agent and returns its run. The options are the fields of RunConfig, for example env, steps, seed.

    `agent` and `hyper` are dictionaries: train("td3", env="pendulum", hyper={"actor_lr": 1e-3}). What is not given is
    as in the preset for this algorithm and environment, or with `preset=False` as in the plain defaults.
    """
    require(isinstance(preset, bool), f"preset must be True or False, not {preset!r}.")
    config = preset_config(algorithm, **options) if preset else default_config(algorithm, **options)
    return start(config, Path(out) if out else None, Reporter(quiet), preset, cluster=cluster)


def evolve(
    algorithm: str,
    *,
    members: int = 8,
    pbt: dict[str, Any] | None = None,
    space: dict[str, Any] | None = None,
    ray_address: str = "",
    plugins: tuple[str, ...] = (),
    **options: Any,
) -> Run:
    """Trains a population and tunes its hyper-parameters meanwhile. The options are those of `train`, and

    `pbt`, such as {"bottom": 0.5}; `space`, ranges that differ from the algorithm's own, such as
    {"actor_lr": "1e-5:1e-2", "tau": "off"}. The best member is the run's policy.

    With `engine="ray", islands=4` the members are divided among islands on this machine or, with `ray_address`, on a
    cluster; `plugins` are modules that each of them imports first, which register environments, networks or agents.
    """
    require("seeds" not in options, "evolve takes `members`, not `seeds`.")
    cluster = Cluster(ray_address, tuple(plugins))
    return train(algorithm, seeds=members, pbt=pbt or {}, space=space or {}, cluster=cluster, **options)


def load(path: str | Path) -> Run:
    """The run in a folder."""
    use_cache()
    folder = RunFolder(Path(path))
    return Run(folder, folder.load_config())


def start(
    config: RunConfig[Any, Any],
    out: Path | None,
    reporter: Reporter,
    preset: bool = False,
    crew: Crew = ALONE,
    cluster: Cluster = HERE,
) -> Run:
    """A new run, from its first step to its pictures. A folder that holds the same run unfinished is gone on with.

    `preset` says that the configuration began with a preset, which is then named.
    """
    chosen = describe(config.algorithm, config.env, config) if preset else ""
    config = config.resolved()
    with connected(config, cluster, reporter) as connection:
        program = _prepared(config, crew)
        folder = _created(config, out, crew)
        with folder.lock(crew.index):
            return _fit(program, folder, reporter, chosen, connection)


def _prepared(config: RunConfig[Any, Any], crew: Crew) -> Program:
    """The program of a new run, which can be run with the data that it is to start with."""
    use_cache()
    use_devices(config, crew.count * config.islands)
    program = build(config, crew)
    if config.replay:
        program.loaded_rows(open_replay(Path(config.replay)))
    return program


def _created(config: RunConfig[Any, Any], out: Path | None, crew: Crew) -> RunFolder:
    """The folder of a new run, or of the same one unfinished."""
    folder = _agreed(RunFolder(out) if out else new_folder(config), crew)
    with _one_at_a_time(crew):
        if folder.config.exists():
            differing = _differences(folder.load_config(), config)
            require(
                not differing,
                f"{folder.path} holds a run of another configuration: {_listed(differing)}. Give another --out, or go "
                f"on with that run with `covey resume {folder.path}`.",
            )
        else:
            folder.create(config)
    return folder


def resume(
    path: Path,
    config: RunConfig[Any, Any] | None,
    reporter: Reporter,
    crew: Crew = ALONE,
    cluster: Cluster = HERE,
) -> Run:
    """Goes on with a run from its newest checkpoint, with another configuration if one is given."""
    folder = RunFolder(path)
    old, whole = folder.load_config(), folder.whole
    require(whole is None, f"{path} is an island of a run. Go on with all of it: covey resume {whole and whole.path}")
    with connected(old, cluster, reporter) as connection, folder.lock(crew.index):
        use_cache()
        use_devices(config or old, crew.count * old.islands)
        with _one_at_a_time(crew):
            program = _changed_program(folder, config, crew)
        return _fit(program, folder, reporter, connection=connection)


def _agreed(folder: RunFolder, crew: Crew) -> RunFolder:
    """The folder that the first process of a job has chosen."""
    name = str(folder.path.absolute() if crew.count > 1 else folder.path).encode()
    require(len(name) <= MOST_PATH, f"The path of the run folder is longer than {MOST_PATH} bytes.")
    message = np.frombuffer(name.ljust(MOST_PATH, b"\0"), np.uint8)[None]
    return RunFolder(Path(crew.gather(message)[0].tobytes().rstrip(b"\0").decode()))


@contextmanager
def _one_at_a_time(crew: Crew) -> Iterator[None]:
    """Lets the first process of a job do something to the folder before the others do."""
    if crew.index > 0:
        crew.agree(False)
    yield
    if crew.index == 0:
        crew.agree(False)


def _changed_program(folder: RunFolder, config: RunConfig[Any, Any] | None, crew: Crew) -> Program:
    """The program of a run that goes on, after writing down what is to be another way from here on."""
    islands = [folder.island(number) for number in range(folder.load_config().islands)]
    parts = [island for island in islands if island.config.exists()]
    changes = [_change(part, config, crew) for part in (*parts, folder)]
    for each in changes:
        each.record()
    return changes[-1].program


class Change(NamedTuple):
    """What is to be another way in a run from a step on, which is possible."""

    folder: RunFolder
    program: Program
    step: int
    differing: list[tuple[str, Any, Any]]

    def record(self) -> None:
        if not self.differing:
            return
        with writing(self.folder.path):
            for name, before, after in self.differing:
                self.folder.record_change(self.step, name, before, after)
            self.folder.write_config(self.program.config)


def _change(folder: RunFolder, config: RunConfig[Any, Any] | None, crew: Crew) -> Change:
    """How a configuration changes a run; an error where it can't."""
    old = folder.load_config()
    new = dataclasses.replace(config, capacity=old.capacity).resolved() if config else old
    differing = _differences(old, new)
    forbidden = [d for d in differing if d[0].split(".")[0] not in RESUMABLE]
    require(
        not forbidden,
        f"{_listed(forbidden)}: that can't change within a run. What can: {', '.join(RESUMABLE)}. For another value, "
        "start another run.",
    )
    program = build(new, crew)
    step = max(Store(folder.checkpoints, "step").steps(), default=0)
    require(
        new.steps >= old.steps or program.total * program.block_steps >= step,
        f"The run is already at step {step:,}, beyond --steps {new.steps:,}.",
    )
    return Change(folder, program, step, differing)


def _fit(
    program: Program,
    folder: RunFolder,
    reporter: Reporter,
    preset: str = "",
    connection: Connection | None = None,
) -> Run:
    run = Run(folder, program.config)
    _introduce(program, folder, reporter, preset)
    if connection is not None:
        _fit_islands(run, program, reporter, connection)
        return run
    session = Session(program, folder, reporter)
    try:
        with session.stoppable():
            session.run()
            if program.crew.index == 0:
                with writing(folder.path):
                    _finish(run, program, session.best.step, reporter)
                    reporter.say(session.writer.cost())
    except KeyboardInterrupt:
        saved = session.states.steps()
        what = f"Saved at step {saved[-1]:,}." if saved else "Stopped before the first checkpoint."
        reporter.say(f"{what} Go on with: covey resume {folder.path}")
        raise
    return run


def _fit_islands(run: Run, program: Program, reporter: Reporter, connection: Connection) -> None:
    """The same on a cluster: the islands train, and what they leave is finished here."""
    config, folder = program.config, run.folder
    try:
        with writing(folder.path):
            train_islands(config, folder, reporter, connection)
            bests = Store(folder.checkpoints, "best").steps()
            require(bool(bests), f"No evaluation of {folder.path} was finite, so it has no best policy.")
            _finish(run, program, bests[-1], reporter)
    except KeyboardInterrupt:
        steps = [f"{reached(folder, number):,}" for number in range(config.islands)]
        reporter.say(f"The islands are saved at steps {', '.join(steps)}. Go on with: covey resume {folder.path}")
        raise


def _introduce(program: Program, folder: RunFolder, reporter: Reporter, preset: str) -> None:
    config = program.config
    steps = program.total * program.block_steps
    reporter.heading(f"{config.algorithm} on {config.env}: {steps:,} steps, {_who(program)}")
    reporter.say(
        f"  environments {config.envs}, updates per step {config.updates_per_step:g}, warm-up "
        f"{program.warmup * program.block_steps:,} steps, replay {config.capacity:,} steps"
    )
    if preset:
        reporter.say(f"  preset for {config.algorithm} on {config.env}: {preset} (--preset off: without)")
    chosen = [f"{name} {new}" for name, _, new in _differences(type(config.agent)(), config.agent)]
    reporter.say(f"  agent: {', '.join(chosen) or 'all defaults'}")
    hyper = ", ".join(f"{name} {value}" for name, value in flat(dataclasses.asdict(config.hyper)).items())
    reporter.say(f"  hyper-parameters: {hyper}")
    if config.pbt:
        ranges = ", ".join(f"{name} {each.low:g} to {each.high:g}" for name, each in program.space.items())
        number, replaced = len(program.generations), round(config.pbt.bottom * config.seeds)
        reporter.say(f"  tuned: {ranges or 'nothing'}")
        reporter.say(
            f"  {number} generations, one every {config.pbt.interval:,} steps; in each, the {replaced} worst by "
            f"{config.fitness} copy one of the {max(1, round(config.pbt.top * config.seeds))} best"
        )
    reporter.say(f"  run folder: {folder.path}")


def _who(program: Program) -> str:
    """The members, and what they run on."""
    config, loop, crew = program.config, program.loop, program.crew
    platform, last = jax.local_devices()[0].platform, config.seed + config.seeds - 1
    devices = platform if loop.devices == 1 else f"{loop.devices} {platform} devices"
    where = devices if crew.count == 1 else f"{devices} of each of {crew.count} processes"
    where = f"{config.islands} islands" if config.engine == "ray" else where
    if config.seeds == 1:
        return f"seed {last}, on {where}"
    how = {"map": "in turn", "vmap": "in lock-step"}[loop.axis]
    who = f"{config.seeds} members" if config.pbt else f"seeds {config.seed} to {last}"
    return f"{who} {how}, on {where}"


def _finish(run: Run, program: Program, best_step: int, reporter: Reporter) -> None:
    """The last words of a run: an evaluation on new start states, the curve, the animation."""
    result = run.evaluate(program.config.episodes)
    replace_text(run.folder.episodes.parent / "final.json", json.dumps(summary(result), indent=2) + "\n")
    reporter.heading(f"Best policy (step {best_step:,}), new start states: {result}")
    reporter.say(f"learning curve: {run.plot()}")
    reporter.say(f"one episode:    {run.plot_episode()}")
    reporter.say(f"animation:      {_animation(run)}")
    if run.config.pbt:
        reporter.say(f"population:     {', '.join(map(str, run.plot_population()))}")
    if program.skills:
        reporter.say(f"skills:         {run.plot_skills()}")
    reporter.say(f"run folder:     {run.path}")


def _animation(run: Run) -> str:
    """Where the animation is, or why there is none: a run is not lost because nothing can be drawn."""
    try:
        return str(run.animate())
    except CoveyError as error:
        return f"none: {error}"


def summary(result: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values, every episode included."""
    return {
        "return": finite(result.mean.centre),
        "low": finite(result.mean.low),
        "high": finite(result.mean.high),
        "returns": [finite(x) for x in result.episodes.returns],
        "lengths": result.episodes.length.tolist(),
        "descriptors": [[finite(x) for x in each] for each in result.episodes.descriptor],
        **{name: [finite(x) for x in values] for name, values in result.episodes.marks.items()},
        **({"skills": {name: finite(x) for name, x in result.skills.items()}} if result.skills else {}),
    }


def _differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The fields in which two configurations differ: name, old value, new value."""
    found = []
    for f in dataclasses.fields(old):
        before, after, name = getattr(old, f.name), getattr(new, f.name), f"{path}{f.name}"
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            found += _differences(before, after, f"{name}.")
        elif before != after:
            found.append((name, before, after))
    return found


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _listed(differences: list[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{name} is {before!r} there and {after!r} here" for name, before, after in differences)
