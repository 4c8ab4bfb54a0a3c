"""The training loop of a run: advance, log, evaluate, tune, save. A single agent is a population of one."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from covey.backend import compiled_ahead, silence_xla
from covey.errors import CoveyError, Stopped, require
from covey.evaluation.stats import Interval, mean_interval
from covey.hyper.names import by_name
from covey.run.console import Reporter
from covey.run.limits import memory_errors
from covey.run.program import Program
from covey.run.stopping import Stopping
from covey.run.tuning import Tuning
from covey.storage.checkpoint import require_fields
from covey.storage.folder import disk_errors
from covey.storage.layout import AGENT, HYPER, best_arrays, not_finite, pack, pack_best, unpack, with_hypers
from covey.storage.metrics import RunFiles, finite
from covey.storage.shards import read_newest, remove_unused
from covey.storage.store import KEEP, Store, Writer

if TYPE_CHECKING:
    from covey.callbacks import Hooks
    from covey.evaluation.rollout import Episodes
    from covey.population.pbt import Ranking
    from covey.run.run import Run
    from covey.training.member import Population

    Found = tuple["Episodes", dict[str, np.ndarray], dict[str, np.ndarray]]
    """Episodes, measures of skills, and measures of the user's evaluator, of every member [p]."""

CHUNK_SECONDS = 1.0
"""Approximate wall time of a chunk: how often the progress bar moves and signals are answered."""


class Best(NamedTuple):
    """The best policy so far: its fitness, its step, and its arrays."""

    value: float
    step: int
    arrays: dict[str, np.ndarray]


class Session:
    """One process's training of a run, from its start or a checkpoint to its end or an interruption."""

    def __init__(self, program: Program, run: "Run", reporter: Reporter, hooks: "Hooks") -> None:
        folder = run.folder
        self.program = program
        self.handle = run
        self.folder = folder
        self.reporter = reporter
        self.hooks = hooks
        self.group = program.group
        self.entry = program.policy.entry
        # One more in a job: another process may have written its newest checkpoint already.
        keep = KEEP if program.group.count == 1 else KEEP + 1
        self.states = Store(folder.shard(program.group.index), "step", keep)
        self.bests = Store(folder.checkpoints, "best", keep=1)
        self.writer = Writer(60.0 * program.config.checkpoint_minutes)
        self.wall_before = 0.0
        self.best = Best(-np.inf, -1, {})
        self.saved_block = -1
        self.written_step = -1
        self.started = time.monotonic()
        self._end: Callable[..., None] = lambda media: None
        self.stopping = Stopping(reporter, self.states, self.writer, folder.path, together=self.group.count > 1)

    @property
    def wall(self) -> float:
        """Seconds of training, including earlier sessions."""
        return self.wall_before + time.monotonic() - self.started

    @property
    def reported_members(self) -> range:
        """The indices of the members that this process reports."""
        return self.program.reported_members

    @property
    def step(self) -> int:
        return self.block * self.program.block_steps

    def run(self) -> Best:
        """Trains to the end. Raises Stopped if asked to stop, after saving."""
        with disk_errors(self.folder.path), memory_errors():
            with compiled_ahead(self._programs()) as ready:
                self._begin()
                self._compile(ready)
            try:
                block = self.program.block_steps
                self.reporter.start(self.program.total * block, self.step, self.program.warmup * block)
                with self.stopping.saves():
                    self._train()
            finally:
                self.reporter.stop()
                self.files.close()
                self.program.close()
        return self.best

    def end(self, media: Mapping[str, Path] | None = None) -> None:
        """Closes the trackers, with pictures and films by name. Call it after `run`, also if that has failed."""
        self._end(media)

    def _begin(self) -> None:
        """Creates the population, or restores it from the newest intact checkpoint."""
        found = read_newest(self.folder, self.group, self.program.loop.members, self.reporter.say)
        if found is None:
            self.population, info = self.program.init(self.reporter.say, self.folder), {}
        else:
            arrays, info = found
            require_fields(info, "step", "wall", "best", "files")
            self.population = self._restored(arrays, info)
            self.wall_before = info["wall"]
            self.reporter.say(f"Resuming from step {info['step']:,}. {self._held()}")
        self.block = self.saved_block = int(self.population.block)
        self.states.remove_after(self.step)
        writes = self.group.index == 0
        if writes:
            self.bests.remove_after(self.step)
            remove_unused(self.folder, self.group.count)
            self._repair_best()
        pbt = self.program.config.pbt
        logged = {"writes": writes, "lineage": bool(pbt), "report": self.reporter.say}
        track = self.program.config.track
        self.files = RunFiles(self.folder, self.reported_members, self.step, info, track=track, **logged)
        self._end = self.files.end
        self.tuning = Tuning(self.program, pbt, self.files) if pbt else None
        self.ranking: Ranking | None = None
        self._call("on_start")
        self._raise_error()

    def _call(self, name: str, values: dict[str, np.ndarray] | None = None, **more: Any) -> None:
        """Calls the callbacks, in the process that logs."""
        if self.group.index == 0:
            about = {"step": self.step, "path": self.folder.path} | more
            self.hooks.call(name, wall=self.wall, values=values or {}, **about)

    def _raise_error(self) -> None:
        if self.hooks.error is not None:
            self.writer.finish()
            raise self.hooks.error

    def _repair_best(self) -> None:
        """Writes the checkpoint of the best policy again if it is damaged: every training checkpoint has a copy."""
        if self.best.arrays and not self.bests.is_intact(self.best.step, self.reporter.say):
            self._write_best(self.best)

    def _write_best(self, best: Best) -> None:
        self.bests.write(best.step, best.arrays, {"value": best.value, "step": best.step})

    def _programs(self) -> "Iterator[jax.stages.Lowered]":
        """Yields the programs of training and of the warm-up, if the run still needs them."""
        step = max(self.states.steps(), default=0)
        if step < self.program.total * self.program.block_steps:
            yield from self.program.loop.lowered(warmup=False)
        if step < self.program.warmup * self.program.block_steps:
            yield from self.program.loop.lowered(warmup=True)

    def _compile(self, ready: Callable[[], None]) -> None:
        """Compiles every program before speed is measured, with chunks of no blocks, which change nothing.

        Args:
            ready: Waits for the programs that are being compiled ahead.
        """
        with self.reporter.busy("Compiling"):
            found = self._evaluate()
            with silence_xla():
                ready()
                if self.block < self.program.warmup:
                    self._advance(0, warmup=True)
                self._advance(0, warmup=False)
        if self.block == 0:
            self._record(found, 0.0)
            self._raise_error()
        if self.tuning:
            ranking = self._rank(found)  # also publishes it to other islands, so it is needed on resume too
            if self.block == 0:
                self.tuning.start(ranking)

    def _train(self) -> None:
        blocks = 1
        since_evaluation = (self.block, time.monotonic())
        self._stop_if_asked()
        while self.block < self.program.total:
            warm = self.block < self.program.warmup
            stop = min(s for s in (*self.program.log_blocks, self.program.warmup) if s > self.block)
            count = min(blocks, stop - self.block)
            start = time.monotonic()
            self._advance(count, warm)
            seconds = (time.monotonic() - start) / count
            blocks = 1 if self.block == self.program.warmup else max(1, int(CHUNK_SECONDS / max(seconds, 1e-6)))
            self._check_finite()
            rate = len(self.reported_members) / seconds
            updates = 0 if warm else self.program.updates_per_block
            self.reporter.update(self.step, rate * self.program.block_steps, rate * updates)
            if self.block in self.program.log_blocks:
                failed = self._log()
                due = self.block in self.program.eval_blocks
                any_failed = self.group.any_process(bool(failed.any()))
                if due or any_failed:
                    done, when = since_evaluation
                    speed = (self.block - done) * self.program.block_steps / (time.monotonic() - when)
                    self._evaluate_and_tune(due, failed, any_failed, speed * len(self.reported_members))
                    since_evaluation = (self.block, time.monotonic())
                if self.group.any_process(self.hooks.is_over):
                    break
            if self.group.count == 1 or self.block in self.program.log_blocks:
                self._save_if_due()
        self._save()
        self.writer.finish()
        self._announce_checkpoint()
        if self.hooks.error:
            self.stopping.say_saved()
            raise self.hooks.error
        if self.tuning:  # after the last checkpoint, so that a run that is extended drops these rows
            self.tuning.end(self.block, self.ranking or self._rank(self._evaluate()))
        self.files.finish(self.step)

    def _advance(self, blocks: int, warmup: bool) -> None:
        self.population = self.program.loop.advance(self.population, blocks, warmup=warmup)
        jax.block_until_ready(self.population.block)
        self.block += blocks
        for text in self.program.loop.take_messages():
            self.reporter.say(text)

    def _check_finite(self) -> None:
        """Stops at the first quantity that was not finite, and keeps the earlier checkpoints.

        In a population, a member that fails is replaced instead.
        """
        if self.tuning:
            return
        faults = np.asarray(self.population.members.tally.fault)
        for member, (quantity, iteration) in enumerate(faults):
            if quantity >= 0:
                trainer = self.program.loop.trainer
                step = int(iteration) * trainer.unroll * trainer.envs
                self.writer.finish()
                self.files.fault(trainer.quantities[quantity], member, step)
                raise CoveyError(
                    f"The {trainer.quantities[quantity]} of member {member} was not finite (NaN or infinite) at "
                    f"environment step {step:,}. Training stopped there. {self._kept()} If it is an observation or a "
                    f"reward, the environment {self.program.config.env!r} produced it; if it is a loss, training "
                    "diverged: lower the learning rates or `hyper.reward_scale`."
                )

    def _kept(self) -> str:
        steps = self.states.steps()
        return f"The checkpoint of step {steps[-1]:,} is kept." if steps else "No checkpoint had been written yet."

    def _log(self) -> np.ndarray:
        """Logs the means since the last log and resets the sums. Returns the members that failed since, [p]."""
        members = self.population.members
        trainer = self.program.loop.trainer
        hyper = by_name(jax.device_get(self._hyper()))
        own = jax.device_get(members.tally)
        tally, hyper, broken = self.group.gather((own, hyper, self.program.loop.take_broken()))
        names = trainer.quantities
        means = tally.sums / np.maximum(tally.learned, 1)[:, None]
        episodes, returns, lengths = tally.episodes.T
        values = {"train/episodes": episodes} | broken
        if episodes.min() > 0:
            values |= {"train/return": returns / episodes, "train/length": lengths / episodes}
        if self.block > self.program.warmup:
            values |= {f"agent/{name}": means[:, i] for i, name in enumerate(names) if i >= 2}
        values |= {f"hyper/{name.replace('.', '/')}": x for name, x in hyper.items()}
        self.files.write(self.step, self.wall, values)
        self.reporter.watch(self.step, values)
        self.population = self.program.loop.reset_tally(self.population)
        trained = float(np.mean(values["train/return"])) if "train/return" in values else None
        self.reporter.logged(self.step, None if self.entry.is_skill_agent and not trained else trained)
        self._call("on_log", values)
        return own.fault[:, 0] >= 0

    def _hyper(self) -> Any:
        """Returns the members' hyper-parameters [p] at this step."""
        return self.program.hypers(self.population)

    def _evaluate(self) -> "Found":
        return *self.program.evaluate(self.population), self._measure()

    def _measure(self) -> dict[str, np.ndarray]:
        """Returns what the user's evaluator measures of each member of this process, [p] by name."""
        if self.hooks.evaluator is None:
            return {}
        try:
            found = [self.hooks.measure(self.current(member)) for member in self.program.members]
        except Exception:
            self.writer.finish()
            raise
        return {name: np.array([each[name] for each in found]) for name in found[0]}

    def current(self, member: int) -> "Run":
        """Returns the run with the current policy of a member of this process as its best."""
        require(member in self.program.members, f"There is no member {member} in this process: {self.program.members}.")
        at = self.program.members.index(member)
        return self.handle.with_policy(*jax.tree.map(lambda x: x[at], (self.population.members.agent, self._hyper())))

    def _evaluate_and_tune(self, due: bool, failed: np.ndarray, any_failed: bool, speed: float) -> None:
        """Evaluates, keeps the best policy, and tunes the members at a generation or if one has failed."""
        found = self._evaluate()
        if due:
            self._record(found, speed)
        if not self.tuning:
            return
        self.ranking = self._rank(found, failed)
        is_generation = self.block in self.program.generations
        if self.block < self.program.total and (is_generation or any_failed):
            self.population = self.tuning.exchange(self.population, self.block, self.ranking, rescue=not is_generation)

    def _fitness(self, found: "Found", returns: np.ndarray) -> np.ndarray:
        """Returns the number that ranks each member: the user's `fitness`, or what the configuration names."""
        _, measured, own = found
        name = self.program.config.fitness if self.tuning else "return"
        return own.get("fitness", returns if name == "return" else measured[name])

    def _rank(self, found: "Found", failed: np.ndarray | None = None) -> "Ranking":
        assert self.tuning
        returns = np.asarray(found[0].returns)
        fitness = self._fitness(found, np.mean(returns, axis=1))
        failed = np.zeros(len(fitness), bool) if failed is None else failed
        return self.tuning.rank(self.population, fitness, returns, failed)

    def _record(self, found: "Found", speed: float) -> None:
        """Logs an evaluation, and keeps the best policy."""
        found = self.group.gather(found)
        episodes, measured, own = found
        values = self._write_evaluation(episodes, measured, own)
        self.reporter.watch(self.step, values)
        fitness = self._fitness(found, values["eval/return"])
        self._keep_best(fitness)
        shown = {name: np.mean(x) for name, x in episodes.reported().items()}
        shown |= {name: np.mean(measured[name]) for name in self.entry.progress if name in measured}
        shown |= {name: np.mean(x) for name, x in own.items()}
        texts = tuple(f"{name} {value:z.2f}" for name, value in shown.items())
        texts += ("warm-up",) if 0 < self.block <= self.program.warmup else ()
        returns = np.asarray(episodes.returns)
        learned = returns if self.block > self.program.warmup else None
        figures = self._figures(returns, fitness, texts)
        self.reporter.evaluated(self.step, figures, speed, learned, self._point(values))
        mine = [fitness[self.reported_members.index(member)] for member in self.program.members]
        fittest = self.program.members[int(np.argmax(np.nan_to_num(mine, nan=-np.inf)))]
        self._call("on_evaluation", values, episodes=episodes, run=lambda member=fittest: self.current(member))

    def _point(self, values: dict[str, np.ndarray]) -> tuple[str, Interval] | None:
        """Returns the metric of the learning curve, and its mean with its interval; of a population, best and worst."""
        name = self.program.config.curve
        own = values.get(name)
        if own is None or not np.isfinite(own).any():
            return None
        if self.tuning:
            return name, Interval(float(np.nanmax(own)), float(np.nanmin(own)), float(np.nanmax(own)))
        if len(own) == 1 and f"{name}_low" in values:
            return name, Interval(*(float(values[f"{name}{end}"][0]) for end in ("", "_low", "_high")))
        return name, mean_interval(own)

    def _write_evaluation(
        self, found: "Episodes", measured: dict[str, np.ndarray], own: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Logs an evaluation. Returns the logged numbers [P] by name."""
        intervals = np.array([mean_interval(returns) for returns in found.returns])
        names = ("eval/return", "eval/return_low", "eval/return_high")
        values = dict(zip(names, intervals.T, strict=True)) | {"eval/length": np.mean(found.length, axis=1)}
        values |= {f"eval/{name}": np.mean(x, axis=1) for name, x in found.annotations.items()}
        values |= self._descriptors(found)
        values |= {f"eval/{name}": x for name, x in own.items()}
        values |= {f"skills/{name}": x for name, x in measured.items()}
        self.files.write(self.step, self.wall, values)
        for member, episode in np.ndindex(found.returns.shape):
            self.files.row(
                "episodes",
                step=self.step,
                member=self.reported_members[member],
                episode=episode,
                **{"return": finite(found.returns[member, episode])},
                length=int(found.length[member, episode]),
                descriptor=[finite(x) for x in found.descriptor[member, episode]],
                **{name: finite(x[member, episode]) for name, x in found.annotations.items()},
            )
        self.files.flush()
        return values

    def _descriptors(self, found: "Episodes") -> dict[str, np.ndarray]:
        """Returns the mean descriptor of each member's episodes, by name."""
        about = self.program.policy.env.spec.descriptor
        means = np.mean(found.descriptor, axis=1)
        names = about.reduced_names(means.shape[-1]) if about else ()
        return {f"eval/descriptor/{name}": means[:, i] for i, name in enumerate(names)}

    def _keep_best(self, fitness: np.ndarray) -> None:
        """Keeps the policy of the fittest member [P] if it is the best so far; of skills, always the newest."""
        top = int(np.argmax(np.where(np.isfinite(fitness), fitness, -np.inf)))
        better = fitness[top] > self.best.value or self.entry.is_skill_agent
        if not (np.isfinite(fitness[top]) and better):
            return
        policies = (self.population.members.agent, self._hyper())
        arrays = pack_best(*self.group.fetch(policies, [self.reported_members[top]]))
        if not not_finite(arrays):
            self.best = Best(float(fitness[top]), self.step, arrays)

    def _figures(self, returns: np.ndarray, fitness: np.ndarray, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the most important numbers of an evaluation, for the progress line."""
        if self.tuning:
            alive = fitness[np.isfinite(fitness)]
            low, middle, high = np.quantile(alive, (0.0, 0.5, 1.0)) if len(alive) else (np.nan,) * 3
            name = self.program.config.fitness
            figures = f"{name}: best {high:z.4g}, median {middle:z.4g}, worst {low:z.4g}"
            return (figures, self.tuning.last_exchange, *texts) if self.tuning.last_exchange else (figures, *texts)
        shown = f"return {mean_interval(returns[0] if len(returns) == 1 else np.mean(returns, axis=1))}"
        if self.entry.is_skill_agent:  # which may have no reward, and whose best policy is the newest
            return (*texts, shown) if returns.any() else texts
        return (shown, f"best {self.best.value:z.1f}", *texts)

    def _stop_if_asked(self) -> None:
        if self.group.any_process(self.stopping.asked):
            self.stopping.answer()
            self._save()
            self.writer.finish()
            self._announce_checkpoint()
            raise Stopped

    def _save_if_due(self) -> None:
        self.writer.check()
        self._announce_checkpoint()
        self._stop_if_asked()
        if self.group.any_process(self.writer.due(self._replay_bytes())):
            self._save()

    def _announce_checkpoint(self) -> None:
        """Calls `on_checkpoint` in the thread that trains, once a checkpoint has been written."""
        step = self.written_step
        if step >= 0 and self.writer.is_idle:
            self.written_step = -1
            self._call("on_checkpoint", step=step, path=self.states.path(step))

    def _replay_bytes(self) -> int:
        """Returns the bytes of the filled part of the replay, which are most of a checkpoint's."""
        replay = self.program.loop.trainer.replay
        return min(self._rows(), replay.rows) * replay.streams * self.program.loop.members * replay.record_bytes

    def _rows(self) -> int:
        return int(self.population.replay.written)

    def _held(self) -> str:
        replay = self.program.loop.trainer.replay
        held = min(self._rows(), replay.rows) * replay.streams
        return f"The replay holds {held:,} of {replay.rows * replay.streams:,} steps."

    def _save(self) -> None:
        """Takes a snapshot, and writes it in the background."""
        if self.saved_block == self.block:
            return
        self.writer.finish()
        self._announce_checkpoint()
        since = time.monotonic()
        population = self.population
        best = self.best
        step = self.step
        writes = self.group.index == 0
        arrays = pack(_tree(population), best.arrays if writes else {})
        # Only the agent is checked: an environment may keep an infinity in its state.
        faulty = not_finite(arrays, AGENT)
        require(
            not faulty or self.tuning is not None,
            f"{''.join(faulty[:1])} is not finite (NaN or infinite) at environment step {step:,}: "
            f"training diverged. {self._kept()} Lower the learning rates or `hyper.reward_scale`.",
        )
        info = {
            "step": step,
            "wall": self.wall,
            "best": {"value": best.value, "step": best.step} if best.arrays else None,
            "files": self.files.sync(),
            "processes": self.group.count,
        }

        def write() -> None:
            if best.arrays and writes:
                self._write_best(best)
            self.states.write(step, arrays, info)
            if writes:
                remove_unused(self.folder, self.group.count)

        self.writer.start(write, since, self._replay_bytes())
        self.saved_block = self.block
        self.written_step = step

    def _restored(self, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> "Population":
        """Returns the population of a checkpoint, and takes its best policy."""
        if info["best"]:
            self.best = Best(**info["best"], arrays=best_arrays(arrays))
        faulty = not_finite(arrays, AGENT) if self.program.config.pbt is None else []
        require(not faulty, f"The checkpoint of step {info['step']:,} holds NaN or infinite values: {faulty[:1]}.")
        arrays = with_hypers(arrays, HYPER, by_name(self.program.policy.initial_hyper()))
        found = unpack(_tree(self.program.loop.template()), arrays)
        return self.program.restore(found, self.folder.changed_since(info["step"]))


def _tree(population: "Population") -> dict[str, Any]:
    """Returns a population as `covey.storage.layout` names its parts."""
    return {"members": population.members, "replay": population.replay._asdict(), "block": population.block}
