"""Pictures of populations: what the file says is what is drawn, whatever their size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from covey.errors import CoveyError
from covey.plots.population import (
    WINNER,
    fitness_limits,
    plot_fitness,
    plot_hypers,
    plot_lineage,
    reached_fitness,
    robust_limits,
    step_points,
    tick_text,
)
from covey.plots.style import COLOURS, HIGHLIGHT, short_number
from covey.storage.lineage import Lineage, read_lineage, winner_path

RANGES = {
    "actor_lr": (1e-5, 1e-2, "log"),
    "discount": (0.9, 0.999, "one_minus"),
    "noise": (0.0, 0.5, "linear"),
    "sac.critic_lr": (1e-5, 3e-3, "log"),
    "tau": (0.002, 0.02, "log"),
    "sac.target_entropy_scale": (0.2, 2.0, "linear"),
    "sac.temperature_learning_rate": (1e-5, 1e-2, "log"),
    "trace": (0.5, 0.99, "one_minus"),
    "reward_scale": (1.0, 1000.0, "log"),
    "policy_noise": (0.1, 0.4, "linear"),
    "clip": (-2.0, 2.0, "linear"),
    "weight_decay": (1e-9, 1e-5, "log"),
}


class Simulated:
    """A small population-based training: fitness approaches 0 the quicker, the better the hyper-parameters are.

    Every member carries the numbers of those who held its weights, as real weights would.
    """

    def __init__(self, members: int, hypers: int, seed: int = 0, failing: float = 0.0) -> None:
        self.random = np.random.default_rng(seed)
        self.members, self.failing = members, failing
        self.names = list(RANGES)[:hypers]
        self.hyper = {name: [self.draw(name) for _ in range(members)] for name in self.names}
        self.skill = np.full(members, -1200.0) + self.random.normal(0.0, 60.0, members)
        self.held_by = [[m] for m in range(members)]
        self.rows: list[dict[str, Any]] = []

    def run(self, generations: int, interval: int = 2000) -> list[dict[str, Any]]:
        for m in range(self.members):
            self.row(0, 0, m, None, self.fitness()[m], "start")
        for generation in range(1, generations):
            self.learn()
            if self.random.random() < self.failing:
                member, donor = (int(m) for m in self.random.choice(self.members, 2, replace=False))
                self.moment([(member, donor)])
                self.row(generation - 1, (generation - 1) * interval + interval // 2, member, donor, None, "failed")
            self.generation(generation, generation * interval, last=generation == generations - 1)
        return self.rows

    def generation(self, generation: int, step: int, last: bool) -> None:
        fitness = self.fitness()
        broken = np.zeros(self.members, bool) if last else self.random.random(self.members) < 0.1 * self.failing
        broken[np.argmax(fitness)] = False
        fitness[broken] = np.nan
        order = np.argsort(np.nan_to_num(fitness, nan=-np.inf))
        number = 0 if last else max(1, self.members // 5)
        losers = set(order[:number]) | set(np.flatnonzero(broken))
        pairs = [(int(m), int(self.random.choice(order[-max(1, number) :]))) for m in sorted(losers)]
        self.moment(pairs)
        donors = dict(pairs)
        for m in range(self.members):
            reason = "kept" if m not in donors else "failed" if broken[m] else "worse"
            self.row(generation, step, m, donors.get(m, m), None if broken[m] else fitness[m], reason)

    def moment(self, pairs: list[tuple[int, int]]) -> None:
        before = [list(held) for held in self.held_by]
        for member, donor in pairs:
            self.held_by[member], self.skill[member] = before[donor], self.skill[donor]
            for name, values in self.hyper.items():
                values[member] = self.explored(name, values[donor])
        self.held_by = [[*held, m] for m, held in enumerate(self.held_by)]

    def learn(self) -> None:
        at = np.mean([[self.place(name, v) for v in self.hyper[name]] for name in self.names], axis=0)
        self.skill *= 1.0 - 0.3 * np.exp(-8.0 * (at - 0.6) ** 2) * self.random.uniform(0.5, 1.0, self.members)

    def fitness(self) -> np.ndarray:
        return self.skill - 150.0 + self.random.normal(0.0, 25.0, self.members)

    def draw(self, name: str) -> float:
        return self.value(name, self.random.random())

    def explored(self, name: str, value: float) -> float:
        if self.random.random() < 0.25:
            return self.draw(name)
        return self.value(name, float(np.clip(self.place(name, value) + self.random.choice([-0.06, 0.06]), 0.0, 1.0)))

    def value(self, name: str, place: float) -> float:
        low, high, scale = RANGES[name]
        if scale == "linear":
            return low + place * (high - low)
        if scale == "log":
            return low * (high / low) ** place
        return 1.0 - (1.0 - low) * ((1.0 - high) / (1.0 - low)) ** place

    def place(self, name: str, value: float) -> float:
        low, high, scale = RANGES[name]
        if scale == "linear":
            return (value - low) / (high - low)
        if scale == "log":
            return float(np.log(value / low) / np.log(high / low))
        return float(np.log((1.0 - value) / (1.0 - low)) / np.log((1.0 - high) / (1.0 - low)))

    def row(self, generation: int, step: int, member: int, parent: int | None, fitness: Any, reason: str) -> None:
        self.rows.append(
            {
                "generation": generation,
                "step": step,
                "member": member,
                "parent": parent,
                "fitness": None if fitness is None else float(fitness),
                "reason": reason,
                "hyper": {name: values[member] for name, values in self.hyper.items()},
            }
        )


def written(rows: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "lineage.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lineage_of(rows: list[dict[str, Any]], folder: Path) -> Lineage:
    return read_lineage(written(rows, folder))


def test_a_lineage_is_read_as_it_was_written(tmp_path: Path):
    rows = Simulated(members=8, hypers=3).run(generations=6)
    lineage = lineage_of(rows, tmp_path)
    assert lineage.steps.tolist() == [0, 2000, 4000, 6000, 8000, 10000]
    assert lineage.generation.tolist() == [0, 1, 2, 3, 4, 5]
    for row in rows:
        at = row["generation"], row["member"]
        assert lineage.fitness[at] == row["fitness"]
        assert lineage.parent[at] == (row["member"] if row["parent"] is None else row["parent"])
        assert lineage.reason[at] == row["reason"]
        assert {name: values[at] for name, values in lineage.hyper.items()} == row["hyper"]


def test_a_failure_between_generations_is_a_moment_of_its_own(tmp_path: Path):
    """Members that did not fail continue unchanged, and none is evaluated."""
    rows = Simulated(members=4, hypers=2).run(generations=3)
    donor = rows[4 + 2]
    failure = {**donor, "step": 3000, "member": 1, "parent": 2, "fitness": None, "reason": "failed"}
    lineage = lineage_of([*rows[:8], failure, *rows[8:]], tmp_path)
    assert lineage.steps.tolist() == [0, 2000, 3000, 4000]
    assert lineage.evaluated.tolist() == [True, True, False, True]
    assert lineage.parent[2].tolist() == [0, 2, 2, 3]
    assert lineage.reason[2].tolist() == ["kept", "failed", "kept", "kept"]
    assert np.isnan(lineage.fitness[2]).all()
    reached = reached_fitness(lineage)
    np.testing.assert_array_equal(reached[2], lineage.fitness[3])
    assert np.isnan(reached[1, 1]), "what failed was not evaluated"
    assert reached[1, [0, 2, 3]].tolist() == lineage.fitness[3, [0, 2, 3]].tolist()
    values = lineage.hyper["actor_lr"]
    assert values[2].tolist() == [values[1, 0], donor["hyper"]["actor_lr"], values[1, 2], values[1, 3]]


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_what_a_kill_cut_off_is_left_out(cut: int, tmp_path: Path):
    """Half a line, and the generation of which it was."""
    path = written(Simulated(members=4, hypers=2).run(generations=5), tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_lineage(path).generation.tolist() == [0, 1, 2, 3]


def test_a_failure_after_the_last_generation_is_left_out(tmp_path: Path):
    rows = Simulated(members=4, hypers=2).run(generations=3)
    failure = {**rows[-1], "step": 5000, "parent": 1, "fitness": None, "reason": "failed"}
    assert lineage_of([*rows, failure], tmp_path).steps.tolist() == [0, 2000, 4000]


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "no parent": ({"parent": 9}, "line 6 .* the parent 9 is not a member"),
    "another member": ({"member": 2}, "line 6 .* member 1 is expected here"),
    "another step": ({"step": 2001}, "line 5 .* the generation should have 4 members"),
    "another reason": ({"reason": "tired"}, "line 6, .* is not a row of a lineage"),
    "no number": ({"fitness": "high"}, "line 6, .* is not a row of a lineage"),
    "no hyper-parameters": ({"hyper": None}, "line 6, .* is not a row of a lineage"),
    "other hyper-parameters": ({"hyper": {"tau": 0.1}}, "line 6 .* should be actor_lr, discount"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_is_named(kind: str, tmp_path: Path):
    rows = Simulated(members=4, hypers=2).run(generations=3)
    change, message = DAMAGE[kind]
    rows[5].update(change)
    with pytest.raises(CoveyError, match=message):
        lineage_of(rows, tmp_path)


def test_a_line_that_is_no_json_is_named(tmp_path: Path):
    path = written(Simulated(members=4, hypers=2).run(generations=3), tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], '{"generation": 0, "st\n', *lines[3:]]))
    with pytest.raises(CoveyError, match=r"line 3, .* is not a JSON object"):
        read_lineage(path)


def test_steps_that_go_back_are_named(tmp_path: Path):
    rows = Simulated(members=4, hypers=2).run(generations=3)
    for row in rows[8:]:
        row["step"] = 1000
    with pytest.raises(CoveyError, match=r"line 12 .* the step should be greater"):
        lineage_of(rows, tmp_path)


def test_a_run_without_a_lineage_is_told_so(tmp_path: Path):
    with pytest.raises(CoveyError, match="Only runs that tune a population"):
        read_lineage(tmp_path / "lineage.jsonl")
    with pytest.raises(CoveyError, match="is empty"):
        lineage_of([], tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_the_winners_path_is_that_of_its_weights(seed: int, tmp_path: Path):
    """Against weights that remember who held them, with failures at and between generations."""
    simulated = Simulated(members=8, hypers=2, seed=seed, failing=0.5)
    lineage = lineage_of(simulated.run(generations=25), tmp_path)
    path = winner_path(lineage).tolist()
    assert (~lineage.evaluated).any() and (lineage.reason[lineage.evaluated] == "failed").any()
    assert path[-1] == np.argmax([row["fitness"] for row in simulated.rows[-8:]])
    assert path == simulated.held_by[path[-1]]


def test_the_last_exchange_of_a_killed_run_does_not_change_what_was_evaluated(tmp_path: Path):
    """Of equals the first wins, though it is replaced there."""
    rows = Simulated(members=2, hypers=1).run(generations=3)
    for row, parent, fitness in zip(rows, [None, None, 1, 1, 1, 1], [0.0] * 6, strict=True):
        row.update(parent=parent, fitness=fitness, reason="worse" if row["member"] != parent else "kept")
    assert winner_path(lineage_of(rows, tmp_path)).tolist() == [1, 0, 0]


def test_there_is_no_winner_without_fitness(tmp_path: Path):
    rows = Simulated(members=2, hypers=1).run(generations=3)
    for row in rows[-2:]:
        row["fitness"] = None
    lineage = lineage_of(rows, tmp_path)
    with pytest.raises(CoveyError, match="at step 4000"):
        winner_path(lineage)
    plot_lineage(lineage, tmp_path / "lineage.png", "all failed")
    assert not pixels_of(tmp_path / "lineage.png", WINNER).any()


def test_robust_limits_leave_out_what_is_far_from_all_others():
    values = np.array([-1e6, -130.0, -120.0, -110.0, -100.0, np.nan])
    assert robust_limits(values, reach=3.0) == (-190.0, -100.0)
    assert robust_limits(values[1:], reach=3.0) == (-130.0, -100.0)
    assert robust_limits(np.array([-1e6, -3.0, -2.0, -1.0]), reach=3.0) == (-6.0, -1.0)
    assert robust_limits(np.array([-5.0, -1.0]), reach=3.0) == (-5.0, -1.0)
    assert robust_limits(np.array([2.0, 2.0, 2.0, 7.0]), reach=3.0) == (2.0, 7.0)


def pixels_of(picture: Path, colour: str) -> np.ndarray:
    """Where [H, W] a picture has nearly the colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return (np.abs(np.asarray(Image.open(picture).convert("RGB"), int) - wanted) <= 8).all(axis=-1)


def assert_nothing_is_cut_off(picture: Path) -> None:
    pixels = np.asarray(Image.open(picture).convert("RGB"))
    edges = [pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]]
    assert all((edge == 255).all() for edge in edges), picture
    assert (pixels != 255).any()


@pytest.mark.parametrize(("members", "hypers", "generations"), [(4, 1, 2), (8, 5, 12), (16, 12, 5), (64, 2, 60)])
def test_pictures_of_all_sizes_show_the_winner_whole(members: int, hypers: int, generations: int, tmp_path: Path):
    failing = 0.5 if generations > 2 else 0.0
    rows = Simulated(members, hypers, failing=failing).run(generations, interval=50_000)
    rows[members + 1]["fitness"] = -5e6
    lineage = lineage_of(rows, tmp_path)
    pictures = [
        plot_lineage(lineage, tmp_path / "new" / "lineage.png", "a population"),
        plot_hypers(lineage, tmp_path / "new" / "hypers.png", "a population", RANGES),
        plot_fitness(lineage, tmp_path / "new" / "fitness.png", "a population"),
    ]
    for picture in pictures:
        assert_nothing_is_cut_off(picture)
    assert pixels_of(pictures[0], WINNER).sum() > 1000 and pixels_of(pictures[1], WINNER).sum() > 1000
    assert pixels_of(pictures[0], HIGHLIGHT).any() == (lineage.reason == "failed").any()


def test_early_catastrophes_do_not_flatten_the_fitness(tmp_path: Path):
    """One member, or all of them, at the start."""
    for awful in (1, 8):
        rows = Simulated(members=8, hypers=1).run(generations=20)
        for row in rows[:awful]:
            row["fitness"] = -1e7
        out = plot_fitness(lineage_of(rows, tmp_path), tmp_path / f"{awful}.png", "a population")
        best = pixels_of(out, COLOURS[0]).nonzero()[0]
        assert np.ptp(best[best < 500]) > 200, "the curve of the best spans a third of the height"


def test_a_quick_curve_is_shown_whole():
    """Though most of its points lie close together at its end."""
    best = np.array([-1200.0, -900.0, -500.0, -250.0] + [-140.0] * 30)
    median, worst = best - 30.0, best - 60.0
    assert fitness_limits(worst, median, best) == (-1260.0, -140.0)
    worst[1], worst[20] = -1500.0, -4000.0
    assert fitness_limits(worst, median, best) == (-1500.0, -140.0), "the worst where there is room"
    assert fitness_limits(np.array([-5.0, 1.0]), np.ones(2), np.ones(2)) == (-5.0, 1.0)


def test_a_line_of_a_hyper_parameter_ends_where_its_member_was_replaced():
    steps, values = np.array([0, 10, 20, 30]), np.array([0.1, 0.1, 0.7, 0.7])
    x, y = step_points(steps, values, np.array([False, False, True, False]))
    assert x.tolist() == [0, 10, 10, 10, 20, 20, 20, 30, 30]
    np.testing.assert_array_equal(y, [0.1, 0.1, 0.1, 0.1, 0.1, np.nan, 0.7, 0.7, 0.7])


def test_ranges_that_can_not_be_drawn_are_named(tmp_path: Path):
    lineage = lineage_of(Simulated(members=4, hypers=1).run(generations=3), tmp_path)
    for ranges, message in (
        ({}, "no range for 'actor_lr'"),
        ({"actor_lr": (0.0, 1.0, "log")}, "from 0 to 1, can't be drawn on the scale 'log'"),
        ({"actor_lr": (0.0, 1.0, "one_minus")}, "from 0 to 1, can't be drawn on the scale 'one_minus'"),
        ({"actor_lr": (0.1, 1.0, "cubic")}, "It must be one of: log, linear, one_minus"),
    ):
        with pytest.raises(CoveyError, match=message):
            plot_hypers(lineage, tmp_path / "hypers.png", "", ranges)


@pytest.mark.parametrize("draw", [plot_lineage, plot_fitness])
def test_a_start_alone_is_no_picture(draw: Callable[[Lineage, Path, str], Path], tmp_path: Path):
    lineage = lineage_of(Simulated(members=4, hypers=1).run(generations=1), tmp_path)
    with pytest.raises(CoveyError, match="one generation"):
        draw(lineage, tmp_path / "picture.png", "")


def test_numbers_on_axes_are_short():
    assert [short_number(n) for n in (0, 500, 20_000, 1_500_000, -1250)] == ["0", "500", "20k", "1.5M", "-1.25k"]
    rounded = [short_number(n, digits=3) for n in (0.5, 949.7, 999.7, 12_345, 999_900)]
    assert rounded == ["0.5", "950", "1k", "12.3k", "1M"]
    numbers = {0.0: "0", 3e-4: "3e-4", -1e-5: "-1e-5", 0.02: "0.02", -1250.0: "-1250", 20_000.0: "20k"}
    assert [tick_text(n) for n in numbers] == list(numbers.values())
