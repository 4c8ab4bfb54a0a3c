"""A run on disk, and everything that can be done with it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from covey import doctor, plots
from covey.errors import require
from covey.evaluation import GIF_FRAMES, Episode, Evaluation, TrainedPolicy, html_table, mean_interval, record
from covey.export.export import Export, Proof, check_policy, export_policy
from covey.run import skills as run_skills
from covey.run.config import RunConfig
from covey.run.limits import MOST, MOST_PLANS, MOST_VIDEO, at_most, check_memory, environments_need, memory_errors
from covey.run.policy import (
    ANIMATION,
    FINAL_EVALUATION,
    BestPolicy,
    PolicyProgram,
    as_source,
    build_policy,
    load_best,
    load_member,
)
from covey.run.program import Replay, replay_of
from covey.storage import lineage, metrics
from covey.storage.best import save_replay
from covey.storage.folder import RunFolder


@dataclass(frozen=True, repr=False)
class Run:
    """A run on disk. `covey.train`, `covey.evolve`, `covey.resume` and `covey.load` return one.

    The best policy is loaded once, when it is first used; load the run again to see the newer policy of a run that is
    still training. Nothing here builds a training program, so a run that was trained on a larger machine can be
    evaluated on a small one.

    Args:
        folder: The run folder.
        config: Its configuration.
        program: The policy's program, if it has been built already.
        current: The policy that counts as the best; by default the best one in the folder.

    Example:
        >>> run = covey.load("runs/pendulum-td3-0")
        >>> print(run.evaluate(episodes=20))
    """

    folder: RunFolder
    config: RunConfig[Any, Any]
    program: PolicyProgram | None = field(default=None, compare=False, repr=False)
    current: BestPolicy | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {', '.join(f'{name} {value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        return html_table({"run": self.path, **self._summary()})

    def _summary(self) -> dict[str, Any]:
        """Returns the most important facts about the run by name."""
        config = self.config
        several = {"members" if config.pbt else "seeds": config.members} if config.members > 1 else {}
        return {
            "agent": config.algorithm,
            "env": config.env,
            "steps": f"{config.steps:,}",
            "seed": config.seed,
            **several,
        }

    @property
    def path(self) -> Path:
        """The path of the run folder."""
        return self.folder.path

    @cached_property
    def best(self) -> BestPolicy:
        """The best policy: its program, its state and its hyper-parameters."""
        return self.current or load_best(self.folder, self.program or build_policy(self.config))

    def with_policy(self, state: Any, hyper: Any) -> "Run":
        """Returns the run with another policy as its best, such as a member's during training.

        Args:
            state: The agent's state.
            hyper: Its hyper-parameters.
        """
        program = self.program or build_policy(self.config)
        return replace(self, program=program, current=BestPolicy(program, state, hyper))

    def best_hyper(self) -> dict[str, Any]:
        """Returns the hyper-parameters of the best policy, as `covey.train(hyper=...)` takes them.

        Of a population they are the winner's, which its schedules and exchanges have led to.

        Example:
            >>> winner = covey.evolve("sac", env="point", members=8)
            >>> covey.train("sac", env="point", hyper=winner.best_hyper(), seeds=5)
        """
        return _as_dict(self.best.hyper)

    def metrics(self) -> dict[str, dict[str, list[float]]]:
        """Reads every logged number, as columns.

        Returns:
            For each metric the columns `step`, `wall`, `member` and `value`.

        Example:
            >>> run.metrics()["eval/return"]["value"][-1]
            -138.2
        """
        return metrics.read_metrics(self.folder.metrics)

    def policy(self, seed: int = 0, *, explore: bool = False, skill: Any = None) -> TrainedPolicy:
        """Returns the best policy as a function from observations to actions.

        Args:
            seed: The seed of its random choices, such as exploration or the skill of an episode.
            explore: Act as in collection, with the policy's noise, instead of greedily.
            skill: For agents that learn skills, the skill of every episode: its index among those that `plot_skills`
                shows, or its numbers [K]. By default it is drawn. With `explore` and `skills.resample`, it may change
                within an episode.

        Example:
            >>> policy = run.policy()
            >>> action = policy(observation)  # in the environment's own units; call policy.reset() at each episode
            >>> actions = run.policy(explore=True, seed=1)(observations)  # of N environments
        """
        program, state, hyper = self.best
        return program.function(state, hyper, seed, explore, skill)

    def q_values(self, obs: Any, action: Any, *, skill: Any = None, target: bool = False) -> np.ndarray:
        """Returns what the critics of the best policy think of actions.

        A value estimates the discounted sum of rewards, as training scales them (`hyper.reward_scale`,
        `normalise.rewards`); SAC's includes the entropy of later actions. TAAC's is the value of a new trajectory that
        starts with the action; for TAAC-L and TAAC-Q, at the first step of an episode.

        Args:
            obs: One observation or many, with any leading axes, as the environment gives them: an array or a
                dictionary of arrays.
            action: Actions [action_size] or [..., action_size], in the environment's units. Leading axes are broadcast.
            skill: For agents that learn skills, the skill (see `policy`).
            target: Ask the target critics.

        Returns:
            The values of every critic, [critics, ...].

        Example:
            >>> run.q_values(observation, policy(observation))
            array([-12.1, -12.4], dtype=float32)
        """
        program, state, hyper = self.best
        return program.q_values(state, hyper, obs, action, skill, target)

    def export(
        self,
        path: str | Path | None = None,
        *,
        format: str = "",
        skill: Any = None,
        member: int | None = None,
        explore: bool = False,
    ) -> Export:
        """Writes the best policy to one file that runs without covey, and proves that the file is the policy.

        Args:
            path: The file; by default export/policy.onnx (.npz, .h, .jax) in the run folder.
            format: `onnx`, `numpy`, `c` or `jax`; by default the one that the suffix of `path` stands for, or onnx.
            skill: For a skill agent: the skill, or its number among those that `covey skills` shows; by default 0.
            member: The member whose newest policy is written; by default the best policy of the run.
            explore: The policy explores, as in training: its random numbers are inputs of the file.

        Returns:
            The file, its size, and the largest difference from the trained policy.

        Example:
            >>> print(run.export("policy.onnx").proof)
            largest difference 3.6e-07 of the action range, on 1,000 observations
        """
        source = as_source(self._policy_of(member), explore, skill, member)
        return export_policy(source, Path(path or self.path / "export"), format)

    def check_export(self, path: str | Path) -> Proof:
        """Compares an exported file with the policy in this run folder again.

        Args:
            path: The file.

        Returns:
            The largest difference from the trained policy.

        Raises:
            CoveyError: The file was changed, was made of another policy, or decides differently.

        Example:
            >>> run.check_export("policy.onnx").difference
            3.6e-07
        """

        def source(about: dict[str, Any]) -> Any:
            member = about.get("member")
            return as_source(self._policy_of(member), about.get("mode") == "explore", about.get("skill"), member)

        return check_policy(Path(path), source)

    def _policy_of(self, member: int | None) -> BestPolicy:
        """Returns the best policy, or the newest policy of a member."""
        return self.best if member is None else load_member(self.folder, self.best.program, member)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Evaluates the best policy greedily, on start states that neither training nor its evaluations used.

        Args:
            episodes: The number of episodes.
            seed: The seed of the start states.

        Returns:
            The mean return with its 95 % interval, and the results of each episode.

        Example:
            >>> print(run.evaluate(episodes=20))
            return -131.3 [-168.4, -94.2] over 20 episodes, mean length 200
              actions: mean change 1.31 per step, 8 % at the limits
        """
        require(episodes > 0, f"`episodes` must be positive, not {episodes}.")
        at_most("episodes", episodes, MOST["episodes"])
        program, *policy = self.best
        check_memory([environments_need(program.env, episodes, "Lower `episodes`.")])
        state, hyper = jax.tree.map(lambda x: x[None], tuple(policy))
        with memory_errors():
            found = program.evaluate(state, hyper, program.stream(FINAL_EVALUATION, seed), episodes)
        program.close()
        found = jax.tree.map(lambda x: x[0], found)
        skills = {name: float(x[0]) for name, x in program.measure(state, hyper).items()}
        if run_skills.can_plan(program):
            reached = [all(plan.reached) for plan in self.random_plans(seed=seed)]
            skills["success"] = float(np.mean(reached))
        return Evaluation(mean_interval(np.asarray(found.returns)), found, skills)

    def plot_skills(self, path: Path | None = None) -> plots.Picture:
        """Draws the trajectories of every skill, as PNG and CSV.

        Args:
            path: The PNG; by default media/skills.png in the run folder.
        """
        title = f"{self.config.algorithm} on {self.config.env}: trajectories of the skills"
        return run_skills.draw_skills(self.best, path or self.folder.media / "skills.png", title)

    def film_skills(
        self, path: str | Path | None = None, *, skills: Sequence[int] | None = None, seed: int = 0
    ) -> plots.Picture:
        """Writes a film of several skills side by side, each with its number and its colour on the map.

        All skills start from the same state. A tile that is paler has reached the end of its episode. If the
        environment can't be drawn, a tile shows the path in the plane of the descriptor.

        Args:
            path: The file, .mp4 or .gif; by default media/skills.mp4 in the run folder, or skills.gif without ffmpeg.
            skills: The numbers of at most nine skills, among those that `plot_skills` shows; by default nine that
                represent all of them.
            seed: The seed of the start state.

        Returns:
            The path of the file; a notebook shows the film.

        Raises:
            CoveyError: The agent learns no skills, there is no such skill, or the file is no film.

        Example:
            >>> run.film_skills("skills.gif", skills=[0, 3, 5])
            Picture('skills.gif')
        """
        return run_skills.film_skills(self.best, Path(path or self.folder.media / "skills"), skills, seed)

    def plan(
        self,
        goals: Any,
        path: Path | None = None,
        *,
        planning: Any = None,
        radius: float | None = None,
        seed: int = 0,
        steps: int = 0,
    ) -> run_skills.Plan:
        """Plans in skill space: one episode that visits goals in turn, with its figure and its animation.

        Args:
            goals: Goals [G, D] in the coordinates of the descriptor.
            path: The PNG; by default media/plan.png in the run folder. The animation is written beside it.
            planning: Planner settings (`covey.agents.skills.goals.Planning`).
            radius: The distance at which a goal counts as reached.
            seed: The seed of the start state.
            steps: Steps of the episode; 0 means the environment's episode length for each goal.

        Example:
            >>> plan = run.plan([[3.0, 4.0], [-2.0, 1.0]])
            >>> plan.reached
            [True, True]
        """
        at_most("steps", steps, MOST_VIDEO)
        planner = run_skills.make_planner(self.best.program, planning)
        radius = run_skills.goal_radius(planner, radius)
        goals = np.asarray(goals, np.float64)
        found, episode = run_skills.plan_episode(planner, self.best, goals, radius, seed, steps)
        figure = path or self.folder.media / "plan.png"
        run_skills.draw_plans(planner, [found], radius, figure, f"{sum(found.reached)} of {len(goals)} goals reached")
        plots.write_gif(figure.with_suffix(".gif"), self.best.program.env, episode)
        return found

    def random_plans(
        self,
        count: int = 20,
        path: Path | None = None,
        *,
        planning: Any = None,
        radius: float | None = None,
        seed: int = 0,
        within: float | None = None,
    ) -> list[run_skills.Plan]:
        """Plans episodes with one random goal each.

        Args:
            count: The number of episodes.
            path: The PNG to draw them into; by default none is drawn.
            planning: Planner settings (`covey.agents.skills.goals.Planning`).
            radius: The distance at which a goal counts as reached.
            seed: The seed of goals and start states.
            within: The greatest distance of a goal from the middle of the descriptor's limits; by default goals lie
                anywhere in 90 % of their width.

        Example:
            >>> found = run.random_plans(20, radius=2.0, within=12.0)
            >>> sum(all(plan.reached) for plan in found)
            18
        """
        require(count > 0, f"`random` must be positive, not {count}.")
        at_most("random", count, MOST_PLANS)
        planner = run_skills.make_planner(self.best.program, planning)
        radius = run_skills.goal_radius(planner, radius)
        found = run_skills.random_plans(planner, self.best, count, radius, seed, within)
        if path:
            reached = sum(all(plan.reached) for plan in found)
            run_skills.draw_plans(planner, found, radius, path, f"{reached} of {count} random goals reached")
        return found

    def episode(self, steps: int = 0, seed: int = 0, frames: int = 0) -> Episode:
        """Runs one greedy episode of the best policy and records it.

        Args:
            steps: Its length; 0 means the environment's episode length, at most 300.
            seed: The seed of the start state.
            frames: Frames per second that a host environment draws; 0 draws none.
        """
        program, state, hyper = self.best
        return record(program.agent, program.env, state, hyper, program.stream(ANIMATION, seed), steps, frames)

    def animate(self, path: Path | None = None, episode: Episode | None = None) -> plots.Picture:
        """Writes an episode of the best policy as a GIF.

        Args:
            path: The file; by default media/policy.gif in the run folder.
            episode: A recorded episode; by default a new one is run.
        """
        episode = episode or self.episode(frames=GIF_FRAMES)
        return plots.write_gif(path or self.folder.media / "policy.gif", self.best.program.env, episode)

    def video(self, path: str | Path | None = None, *, steps: int = 0, seed: int = 0) -> Path:
        """Writes an episode of the best policy as a video.

        Args:
            path: The file: .mp4, .gif or, for a Brax run, .html; by default media/policy.mp4 in the run folder.
            steps: Its length; 0 means the environment's episode length.
            seed: The seed of the start state.
        """
        require(steps >= 0, f"`steps` must not be negative, not {steps}.")
        at_most("steps", steps, MOST_VIDEO)
        file = Path(path or self.folder.media / "policy.mp4")
        write = plots.film_writer(file)
        env = self.best.program.env
        episode = self.episode(steps or env.spec.episode_length, seed, plots.MP4_FRAMES)
        return write(file, env, episode)

    def plot_episode(self, path: Path | None = None, episode: Episode | None = None) -> plots.Picture:
        """Draws the actions of an episode over time, with the policy's annotations.

        Args:
            path: The PNG; by default media/episode.png in the run folder.
            episode: A recorded episode; by default a new one is run.
        """
        title = f"{self.config.algorithm} on {self.config.env}: one episode of the best policy"
        return plots.plot_episode(episode or self.episode(), path or self.folder.media / "episode.png", title)

    def plot(self, path: Path | None = None) -> plots.Picture:
        """Draws the learning curve as PNG, and writes its numbers as CSV beside it.

        Args:
            path: The PNG; by default media/curve.png in the run folder.

        Returns:
            The path of the PNG; a notebook shows the picture.
        """
        metric = self.config.curve
        title = plots.title([asdict(self.config)], metric)
        drawn = plots.curve(metrics.read_run_metrics(self.path, metric), metric, self.path.name)
        return plots.plot_curves([drawn], path or self.folder.media / "curve.png", metric, title)

    def plot_population(self) -> tuple[plots.Picture, ...]:
        """Draws a population: its lineage, its hyper-parameters, and its fitness. Returns the files."""
        require(self.config.pbt is not None, f"{self.path} is no population: `covey evolve` trains one.")
        history = lineage.read_lineage(self.folder.lineage)
        title = f"{self.config.algorithm} on {self.config.env}"
        media = self.folder.media
        ranges = {name: (each.low, each.high, each.scale) for name, each in self.config.searched().items()}
        drawn = [plots.plot_lineage(history, media / "lineage.png", f"{title}: lineage")]
        if ranges:
            drawn.append(plots.plot_hypers(history, media / "hypers.png", f"{title}: hyper-parameters", ranges))
        fitness = plots.plot_fitness(history, media / "fitness.png", f"{title}: fitness", self.config.fitness)
        return (*drawn, fitness)

    def doctor(self) -> doctor.Diagnosis:
        """Looks for reasons why the run does not learn, in its metrics, its networks and its replay.

        Nothing is trained, played or written, so it may be asked while the run trains.

        Returns:
            The findings, worst first: each has its evidence and a remedy.

        Example:
            >>> print(run.doctor())
            nothing found
        """

        def replay() -> Replay:
            return replay_of(self.config, self.program)

        def program() -> PolicyProgram:
            return self.program or build_policy(self.config)

        return doctor.examine(doctor.Subject(self.folder, self.config, program, replay))

    def save_replay(self, path: str | Path | None = None) -> Path:
        """Writes the replay of the newest intact checkpoint to a file.

        Args:
            path: The file; by default replay.safetensors in the run folder.

        Example:
            >>> covey.train("sac", env="pendulum", replay=run.save_replay(), warmup=0)
        """
        islands = [str(self.folder.island(number).path) for number in range(self.config.islands)]
        require(
            self.config.islands == 1 or self.folder.whole is not None,
            f"Each island of {self.path} has its own replay: save that of {' or '.join(islands)}.",
        )
        file = Path(path or self.path / "replay.safetensors")
        about = {"environment": self.config.env, "algorithm": self.config.algorithm}
        save_replay(self.folder, file, replay_of(self.config, self.program), **about)
        return file


def _as_dict(hyper: Any) -> dict[str, Any]:
    """Returns a Hyper as nested dictionaries of numbers and lists of numbers, without those that are None."""
    found = {}
    for name, value in hyper._asdict().items():
        if hasattr(value, "_asdict"):
            found[name] = _as_dict(value)
        elif isinstance(value, tuple):
            found[name] = [_rounded(each) for each in value]
        elif value is not None:
            found[name] = _rounded(value)
    return found


def _rounded(number: Any) -> float:
    """Returns a float32 with the digits that it has."""
    return float(f"{float(number):.6g}")
