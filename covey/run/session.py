"""The training loop: advance, log, evaluate, save. It is the only one; a single agent is a population of one."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.backend import silence_xla
from covey.errors import CoveyError, Stopped, require
from covey.evaluation.rollout import Episodes
from covey.evaluation.stats import mean_interval
from covey.hyper.names import by_name
from covey.hyper.schedule import initial_hyper
from covey.population.pbt import Ranking
from covey.run.console import Reporter
from covey.run.limits import memory_errors
from covey.run.program import EVALUATION, Program
from covey.run.stopping import Stopping
from covey.run.tuning import Tuning
from covey.storage.checkpoint import require_fields
from covey.storage.folder import RunFolder, disk_errors
from covey.storage.metrics import Files, finite
from covey.storage.shards import BEST, REPLAY, read_newest, remove_unused
from covey.storage.store import KEEP, Store, Writer, not_finite, restore, snapshot
from covey.training.member import Population, new_tally
from covey.training.sharding import SPLIT, place

CHUNK_SECONDS = 1.0
"""Wall time of a chunk, about: how often the bar moves and Ctrl-C is heard."""
SHOWN_MEASURES = ("information", "accuracy", "explained_10")
"""What of skills stands in the progress line."""


class Best(NamedTuple):
    """The best policy so far: its evaluation, its step, and its arrays."""

    value: float
    step: int
    arrays: dict[str, np.ndarray]


class Session:
    """One process's work on a run, from a fresh start or a checkpoint to the end or an interruption."""

    def __init__(self, program: Program, folder: RunFolder, reporter: Reporter) -> None:
        self.program, self.folder, self.reporter, self.group = program, folder, reporter, program.group
        # One more in a job: while a process writes its second newest, another may have its newest already.
        keep = KEEP if program.group.count == 1 else KEEP + 1
        self.states = Store(folder.shard(program.group.index), "step", keep)
        self.bests = Store(folder.checkpoints, "best", keep=1)
        self.writer = Writer(60.0 * program.config.checkpoint_minutes)
        self.wall_before, self.best, self.saved_block = 0.0, Best(-np.inf, -1, {}), -1
        self.started = time.monotonic()
        self.stopping = Stopping(reporter, self.states, self.writer, folder.path, together=self.group.count > 1)

    @property
    def wall(self) -> float:
        """Seconds of training, this process's and those before it."""
        return self.wall_before + time.monotonic() - self.started

    @property
    def reported_members(self) -> range:
        """The numbers of the members that this process tells of."""
        return self.group.reported_members(self.program.loop.members)

    @property
    def step(self) -> int:
        return self.block * self.program.block_steps

    def run(self) -> Best:
        """Trains to the end. Raises KeyboardInterrupt if asked to stop, after saving."""
        with disk_errors(self.folder.path), memory_errors():
            self._begin()
            self._compile()
            try:
                self.reporter.start(self.program.total * self.program.block_steps, self.step)
                with self.stopping.saves():
                    self._train()
            finally:
                self.reporter.stop()
                self.files.close()
                self.program.close()
        return self.best

    def _begin(self) -> None:
        """A population at the first step, or that of the newest intact checkpoint."""
        found = read_newest(self.folder, self.group, self.program.loop.members, self.reporter.say)
        if found is None:
            self.population, info = self.program.init(self.reporter.say), {}
        else:
            arrays, info = found
            require_fields(info, "step", "wall", "best", "files")
            self.population = self._restored(arrays, info)
            self.wall_before = info["wall"]
            self.reporter.say(f"Going on from step {info['step']:,}.")
        self.block = self.saved_block = int(self.population.block)
        self.states.remove_after(self.step)
        writes = self.group.index == 0
        if writes:
            self.bests.remove_after(self.step)
            remove_unused(self.folder, self.group.count)
        pbt = self.program.config.pbt
        self.files = Files(self.folder, self.reported_members, self.step, info, writes, self.reporter.say, bool(pbt))
        self.tuning = Tuning(self.program, pbt, self.files) if pbt else None
        self.ranking: Ranking | None = None

    def _compile(self) -> None:
        """Compiles every program before the clock that shows the speed starts: a chunk of no blocks changes nothing."""
        if self.block < self.program.warmup:
            with self.reporter.busy("Compiling the warm-up"), silence_xla():
                self._advance(0, warmup=True)
        with self.reporter.busy("Compiling the training"), silence_xla():
            self._advance(0, warmup=False)
        with self.reporter.busy("Compiling the evaluation"):
            found, measured = self._episodes(), self._measures()
        if self.block == 0:
            self._evaluated(found, measured, 0.0)
        if self.tuning:
            ranking = self._standing(found, measured)  # which others may hear of, also where a run goes on
            if self.block == 0:
                self.tuning.start(ranking)

    def _train(self) -> None:
        blocks, seconds, since_evaluation = 1, 0.0, (self.block, time.monotonic())
        self._stop_if_asked()
        while self.block < self.program.total:
            warm = self.block < self.program.warmup
            stop = min(s for s in (*self.program.moments, self.program.warmup) if s > self.block)
            count = min(blocks, stop - self.block)
            start = time.monotonic()
            self._advance(count, warm)
            seconds = (time.monotonic() - start) / count
            blocks = 1 if self.block == self.program.warmup else max(1, int(CHUNK_SECONDS / max(seconds, 1e-6)))
            self._check_finite()
            rate = len(self.reported_members) / seconds
            updates = 0 if warm else self.program.updates_per_block
            self.reporter.update(self.step, rate * self.program.block_steps, rate * updates)
            if self.block in self.program.moments:
                failed = self._log()
                judged = self.block in self.program.judged
                fallen = self.group.any_process(bool(failed.any()))
                if judged or fallen:
                    done, when = since_evaluation
                    speed = (self.block - done) * self.program.block_steps / (time.monotonic() - when)
                    self._judge(judged, fallen, failed, speed * len(self.reported_members))
                    since_evaluation = (self.block, time.monotonic())
            if self.group.count == 1 or self.block in self.program.moments:
                self._save_if_due()
        self._save()
        self.writer.finish()
        if self.tuning:  # after the last checkpoint, so that a run that goes on longer forgets its end
            self.tuning.end(self.block, self.ranking or self._standing(self._episodes(), self._measures()))
        self.files.finish(self.step)

    def _advance(self, blocks: int, warmup: bool) -> None:
        self.population = self.program.loop.advance(self.population, jnp.int32(blocks), warmup=warmup)
        jax.block_until_ready(self.population.block)
        self.block += blocks
        for text in self.program.loop.take_messages():
            self.reporter.say(text)

    def _check_finite(self) -> None:
        """Stops at the first quantity that was not finite, and keeps the checkpoints from before it.

        Where members are tuned, one that fails is replaced instead.
        """
        if self.tuning:
            return
        faults = np.asarray(self.population.members.tally.fault)
        for member, (quantity, iteration) in enumerate(faults):
            if quantity >= 0:
                trainer = self.program.loop.trainer
                step = int(iteration) * trainer.unroll * trainer.envs
                self.writer.finish()
                raise CoveyError(
                    f"The {trainer.quantities[quantity]} of member {member} was not finite (NaN or infinite) at "
                    f"environment step {step:,}. Training stopped there. {self._kept()} If it is an observation or a "
                    f"reward, the environment {self.program.config.env!r} made it; if it is a loss, training "
                    "diverged: lower the learning rates or --hyper.reward-scale."
                )

    def _kept(self) -> str:
        steps = self.states.steps()
        return f"The checkpoint of step {steps[-1]:,} is kept." if steps else "No checkpoint had been written yet."

    def _log(self) -> np.ndarray:
        """Writes down the means since the last log; the sums start again. Returns who has failed since, [p]."""
        members, trainer = self.population.members, self.program.loop.trainer
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
        fresh = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (self.program.loop.members, *x.shape)), new_tally(len(names))
        )
        fresh = place(fresh, self.program.loop.devices, SPLIT)
        self.population = self.population._replace(members=members._replace(tally=fresh))
        return own.fault[:, 0] >= 0

    def _hyper(self) -> Any:
        """The members' hyper-parameters [p] at this step, those with a schedule too."""
        return self.program.hyper_at(self.population.members.hyper, self.step)

    def _episodes(self) -> Episodes:
        agent, episodes = self.population.members.agent, self.program.config.episodes
        return self.program.evaluate(agent, self._hyper(), self.program.stream(EVALUATION), episodes)

    def _measures(self) -> dict[str, np.ndarray]:
        return self.program.measure(self.population.members.agent, self._hyper())

    def _judge(self, judged: bool, fallen: bool, failed: np.ndarray, speed: float) -> None:
        """Evaluates, keeps the best policy, and tunes the members where it is time or one has failed."""
        found, measured = self._episodes(), self._measures()
        if judged:
            self._evaluated(found, measured, speed)
        if not self.tuning:
            return
        self.ranking = self._standing(found, measured, failed)
        if self.block < self.program.total and (self.block in self.program.generations or fallen):
            rescue = self.block not in self.program.generations
            self.population = self.tuning.exchange(self.population, self.block, self.ranking, rescue)

    def _standing(self, found: Episodes, measured: dict[str, np.ndarray], failed: np.ndarray | None = None) -> Ranking:
        assert self.tuning
        fitness = (
            np.mean(found.returns, axis=1)
            if self.program.config.fitness == "return"
            else measured[self.program.config.fitness]
        )
        failed = np.zeros(len(fitness), bool) if failed is None else failed
        return self.tuning.rank(self.population, fitness, np.asarray(found.returns), failed)

    def _evaluated(self, found: Episodes, measured: dict[str, np.ndarray], speed: float) -> None:
        """Writes an evaluation down, and keeps the best policy."""
        found, skills = self.group.gather((found, measured))
        intervals = np.array([mean_interval(returns) for returns in found.returns])
        names = ("eval/return", "eval/return_low", "eval/return_high")
        annotations = {name: np.mean(x, axis=1) for name, x in found.annotations.items()}
        means = {"length": np.mean(found.length, axis=1)} | annotations
        values = dict(zip(names, intervals.T, strict=True)) | {f"eval/{name}": x for name, x in means.items()}
        values |= {f"skills/{name}": x for name, x in skills.items()}
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
        returns = intervals[:, 0]
        fitness = (
            skills[self.program.config.fitness] if self.tuning and self.program.config.fitness != "return" else returns
        )
        top = int(np.argmax(np.where(np.isfinite(fitness), fitness, -np.inf)))
        better = fitness[top] > self.best.value or bool(self.program.skill_agent)
        if np.isfinite(fitness[top]) and better:
            arrays = snapshot(
                self.group.fetch((self.population.members.agent, self._hyper()), [self.reported_members[top]])
            )
            arrays = {name: np.asarray(x[0]) for name, x in arrays.items()}
            if not not_finite(arrays):
                self.best = Best(float(fitness[top]), self.step, arrays)
        shares = {name: x for name, x in skills.items() if name in SHOWN_MEASURES}
        said = (f"{name} {np.mean(x):.2f}" for name, x in (annotations | shares).items())
        self.reporter.evaluated(self.step, (*self._figures(np.asarray(found.returns), fitness), *said), speed)

    def _figures(self, returns: np.ndarray, fitness: np.ndarray) -> tuple[str, ...]:
        """The numbers of an evaluation that a person sees first."""
        if not self.tuning:
            shown = mean_interval(returns[0] if len(returns) == 1 else np.mean(returns, axis=1))
            return f"return {shown}", f"best {self.best.value:.1f}"
        alive = fitness[np.isfinite(fitness)]
        low, middle, high = np.quantile(alive, (0.0, 0.5, 1.0)) if len(alive) else (np.nan,) * 3
        figures = f"best {high:.4g}, median {middle:.4g}, worst {low:.4g}"
        return (figures, self.tuning.last_exchange) if self.tuning.last_exchange else (figures,)

    def _stop_if_asked(self) -> None:
        if self.group.any_process(self.stopping.asked):
            self.stopping.answer()
            self._save()
            self.writer.finish()
            raise Stopped

    def _save_if_due(self) -> None:
        self.writer.check()
        self._stop_if_asked()
        replay = self.population.replay.data
        if self.group.any_process(self.writer.due(replay.nbytes * min(1.0, self._rows() / replay.shape[1]))):
            self._save()

    def _rows(self) -> int:
        return int(self.population.replay.written)

    def _save(self) -> None:
        """Takes a snapshot now, and writes it in the background."""
        if self.saved_block == self.block:
            return
        since, population, best, step = time.monotonic(), self.population, self.best, self.step
        arrays = snapshot((population.members, population.replay.written, population.block))
        # The agent alone: an environment may well keep an infinity in its state.
        faulty = not_finite(arrays, "[0].agent")
        require(
            not faulty or self.tuning is not None,
            f"{''.join(faulty[:1])} is not finite (NaN or infinite) at environment step {step:,}: "
            f"training diverged. {self._kept()} Lower the learning rates or --hyper.reward-scale.",
        )
        filled = min(self._rows(), population.replay.data.shape[1])
        arrays[REPLAY] = np.array(np.asarray(population.replay.data)[:, :filled])
        writes = self.group.index == 0
        if writes:
            arrays |= {BEST + name: x for name, x in best.arrays.items()}
        info = {
            "step": step,
            "wall": self.wall,
            "best": {"value": best.value, "step": best.step} if best.arrays else None,
            "files": self.files.sync(),
            "processes": self.group.count,
        }

        def write() -> None:
            if best.arrays and writes:
                self.bests.write(best.step, best.arrays, {"value": best.value, "step": best.step})
            self.states.write(step, arrays, info)
            if writes:
                remove_unused(self.folder, self.group.count)

        self.writer.start(write, since, arrays[REPLAY].nbytes)
        self.saved_block = self.block

    def _restored(self, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> Population:
        template = self.program.template()
        if info["best"]:
            best = {name.removeprefix(BEST): x for name, x in arrays.items() if name.startswith(BEST)}
            self.best = Best(**info["best"], arrays=best)
        arrays = {name: x for name, x in arrays.items() if not name.startswith(BEST)}
        require(REPLAY in arrays, f"The checkpoint of step {info['step']:,} holds no replay.")
        faulty = not_finite(arrays, "[0].agent") if self.program.config.pbt is None else []
        require(not faulty, f"The checkpoint of step {info['step']:,} holds NaN or infinite values: {faulty[:1]}.")
        stored = arrays.pop(REPLAY)
        shape = template.replay.data.shape
        fits = stored.shape[0] == shape[0] and stored.shape[2:] == shape[2:] and stored.shape[1] <= shape[1]
        require(fits, f"The replay in the checkpoint of step {info['step']:,} is of another program.")
        members, written, block = restore((template.members, template.replay.written, template.block), arrays)
        replay = self.program.loop.trainer.replay.restore(stored, written)
        changed = self.folder.changed_since(info["step"])

        def current(path: Any, stored: jax.Array, configured: float) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            return jnp.full_like(stored, configured) if f"hyper.{name}" in changed else stored

        hyper = jax.tree.map_with_path(current, members.hyper, initial_hyper(self.program.loop.trainer.schedules))
        restored = Population(members._replace(hyper=hyper), replay, block)
        return self.program.loop.place(restored)
