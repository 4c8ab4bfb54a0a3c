"""A run on disk, and what can be done with it."""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covey import agents, envs
from covey.backend import silence_xla
from covey.errors import CoveyError, require
from covey.evaluation.policy import TrainedPolicy
from covey.evaluation.record import GIF_FRAMES, record
from covey.evaluation.rollout import Episode, Episodes
from covey.evaluation.stats import Interval, mean_interval
from covey.plots.curves import plot_curves
from covey.plots.episode import plot_episode
from covey.plots.film import MP4_FRAMES, film_writer, write_gif
from covey.plots.population import plot_fitness, plot_hypers, plot_lineage
from covey.run.config import RunConfig
from covey.run.console import Reporter
from covey.run.limits import MOST, MOST_PLANS, MOST_VIDEO, at_most, check_memory, environments_need, memory_errors
from covey.run.plans import (
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
from covey.run.program import ANIMATION, FINAL_EVALUATION, Program, build
from covey.storage.atomic import UnreadableError, replace_text
from covey.storage.checkpoint import require_fields
from covey.storage.folder import RunFolder
from covey.storage.lineage import read_lineage
from covey.storage.metrics import finite, read_metrics
from covey.storage.replay_file import write_replay
from covey.storage.shards import BEST, REPLAY, WRITTEN
from covey.storage.store import Store, not_finite, restore


@dataclass(frozen=True)
class Evaluation:
    """The mean return with its 95 % interval over episodes, and what each episode gave."""

    mean: Interval
    episodes: Episodes
    skills: dict[str, float]
    """What the skills are worth, where there are any."""

    def __str__(self) -> str:
        means = {"length": f"{np.mean(self.episodes.length):.0f}"}
        means |= {name: f"{np.mean(x):.2f}" for name, x in self.episodes.annotations.items()}
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
        return build(single, trains=False)

    def metrics(self) -> dict[str, dict[str, list[float]]]:
        """Every logged number: name -> step, wall, member, value."""
        return read_metrics(self.folder.metrics)

    def policy(self, seed: int = 0) -> TrainedPolicy:
        """The best policy of the run, ready to act."""
        program = self.program
        with silence_xla():
            return TrainedPolicy(program.agent, envs.make(self.config.env).spec, *self._best(program), seed)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Greedy episodes of the best policy, on start states that neither training nor its evaluations used."""
        require(episodes > 0, f"--episodes must be positive, not {episodes}.")
        at_most("--episodes", episodes, MOST["episodes"])
        program = self.program
        check_memory([environments_need(program.env, episodes, "Lower --episodes.")])
        state, hyper = jax.tree.map(lambda x: x[None], self._best(program))
        with memory_errors():
            found = program.evaluate(state, hyper, program.stream(FINAL_EVALUATION, seed), episodes)
        program.close()
        found = jax.tree.map(lambda x: x[0], found)
        skills = {name: float(x[0]) for name, x in program.measure(state, hyper).items()}
        if program.skill_agent is not None and can_plan(program):
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
        at_most("--steps", steps, MOST_VIDEO)
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
        require(count > 0, f"--random must be positive, not {count}.")
        at_most("--random", count, MOST_PLANS)
        program = self.program
        policy, radius = planner(program, planning or Planning()), near(program, radius)
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
        at_most("--steps", steps, MOST_VIDEO)
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
        metric = "skills/information" if agents.entry(self.config.algorithm).is_skill_agent else "eval/return"
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
        arrays, info = states.read_newest(_warn, set_aside=False)
        require_fields(info, "step")
        missing = {REPLAY, WRITTEN} - arrays.keys()
        require(not missing, f"The checkpoint of step {info['step']:,} holds no replay.")
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
        arrays = self._best_arrays()
        faulty = not_finite(arrays)
        require(not faulty, f"The best policy of {self.path} holds NaN or infinite values: {''.join(faulty[:1])}.")
        return restore(one, arrays)

    def _best_arrays(self) -> dict[str, np.ndarray]:
        """From the best checkpoint or, where it is damaged or just being replaced, the copy in that of the training."""
        best, states = Store(self.folder.checkpoints, "best"), Store(self.folder.checkpoints, "step")
        self._require_checkpoint(best, states)
        try:
            return best.read_newest(_warn, set_aside=False)[0]
        except UnreadableError:
            raise
        except CoveyError:
            arrays, info = states.read_newest(_warn, set_aside=False)
        require_fields(info, "best")
        require(bool(info["best"]), f"No evaluation of {self.path} was finite, so it has no best policy.")
        return {name.removeprefix(BEST): x for name, x in arrays.items() if name.startswith(BEST)}


def summary(result: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values, every episode included."""
    return {
        "return": finite(result.mean.centre),
        "low": finite(result.mean.low),
        "high": finite(result.mean.high),
        "returns": [finite(x) for x in result.episodes.returns],
        "lengths": result.episodes.length.tolist(),
        "descriptors": [[finite(x) for x in each] for each in result.episodes.descriptor],
        **{name: [finite(x) for x in values] for name, values in result.episodes.annotations.items()},
        **({"skills": {name: finite(x) for name, x in result.skills.items()}} if result.skills else {}),
    }


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def finish(run: Run, program: Program, best_step: int, reporter: Reporter) -> None:
    """The last words of a run: an evaluation on new start states, the curve, the animation."""
    result = run.evaluate(program.config.episodes)
    replace_text(run.folder.episodes.parent / "final.json", json.dumps(summary(result), indent=2) + "\n")
    reporter.heading(f"Best policy (step {best_step:,}), new start states: {result}")
    reporter.say(f"learning curve: {_path_or_reason(run.plot)}")
    reporter.say(f"one episode:    {run.plot_episode()}")
    reporter.say(f"animation:      {_path_or_reason(run.animate)}")
    if run.config.pbt:
        reporter.say(f"population:     {_path_or_reason(lambda: ', '.join(map(str, run.plot_population())))}")
    if program.skill_agent:
        reporter.say(f"skills:         {run.plot_skills()}")
    reporter.say(f"run folder:     {run.path}")


def _path_or_reason(draw: Callable[[], Any]) -> str:
    """Where a picture is, or why there is none: a run is not lost because nothing can be drawn."""
    try:
        return str(draw())
    except CoveyError as error:
        return f"none: {error}"
