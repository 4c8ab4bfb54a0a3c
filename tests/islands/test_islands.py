"""Islands without Ray: their reports, copies between them, and the files of the whole run."""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.callbacks import Hooks
from covey.install import install_command
from covey.islands.board import Board, Island, MemberReport
from covey.islands.merge import merge
from covey.islands.ray import share
from covey.population.pbt import PBT, Ranking, decide
from covey.population.processes import MemberLostError, pack
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.run.console import Reporter
from covey.run.program import build
from covey.run.session import Session
from covey.storage.folder import RunFolder
from tests.runs import TINY, rows


@dataclass
class Here:
    """The way to a board in the same process, which may have lost some members' weights."""

    board: Board
    island: int
    lost: set[int] = field(default_factory=set)

    def publish(self, reports: dict[int, MemberReport]) -> None:
        self.board.publish(
            {m: n._replace(weights=None if n.weights is None else (m, n.weights)) for m, n in reports.items()}
        )

    def read(self) -> dict[int, MemberReport]:
        return self.board.read()

    def collect(self, weights: Any) -> np.ndarray | None:
        member, packed = weights
        return None if member in self.lost else packed

    def log(self, line: str) -> None:
        self.board.log(self.island, line)


def island(board: Board, number: int, donors: int = 1, **options: Any) -> Island:
    """One of two, of two members each."""
    return Island(number, 4, donors, Here(board, number, **options))


def own(*fitness: float) -> Ranking:
    values = np.array(fitness, np.float32)
    return Ranking(values, values[:, None] + np.zeros(3, np.float32), np.zeros(2, bool), {"rate": values / 100})


def agents(first: float) -> dict[str, np.ndarray]:
    return {"weights": np.array([[first, 1.0], [first + 1, 2.0]], np.float32), "count": np.array([1, 2], np.int32)}


def test_a_member_without_a_report_is_not_copied():
    one = island(Board(), 1)
    found = one.gather_ranking(own(3.0, 4.0), agents(0.0))
    assert list(one.local_members(2)) == list(one.reported_members(2)) == [2, 3]
    assert found.failed.tolist() == [True, True, False, False]
    np.testing.assert_array_equal(found.fitness[2:], [3.0, 4.0])
    np.testing.assert_array_equal(found.scores[2:], [[3.0] * 3, [4.0] * 3])
    successors = decide(PBT(bottom=0.5, top=0.5), {}, found, seed=0, generation=1)
    assert {successors[m].parent for m in (2, 3)} <= {2, 3}


def test_each_island_knows_the_last_reports_of_the_others():
    board = Board()
    zero, one = island(board, 0), island(board, 1)
    zero.gather_ranking(own(1.0, 2.0), agents(0.0))
    one.gather_ranking(own(3.0, 4.0), agents(10.0))
    found = zero.gather_ranking(own(5.0, 2.0), agents(0.0))
    np.testing.assert_array_equal(found.fitness, [5.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(found.hypers["rate"], [0.05, 0.02, 0.03, 0.04])
    assert not found.failed.any()


def test_rows_come_from_the_own_tree_and_from_the_board():
    board = Board()
    zero, one = island(board, 0), island(board, 1)
    one.gather_ranking(own(3.0, 4.0), agents(10.0))
    zero.gather_ranking(own(1.0, 2.0), agents(0.0))
    found = zero.fetch(agents(5.0), [1, 3])
    np.testing.assert_array_equal(found["weights"], [[6.0, 2.0], [11.0, 2.0]])
    np.testing.assert_array_equal(found["count"], [2, 2])


def test_only_so_many_of_the_best_are_offered():
    board = Board()
    island(board, 1, donors=1).gather_ranking(own(4.0, 3.0), agents(10.0))
    reports = board.read()
    assert reports[3].weights is None
    np.testing.assert_array_equal(reports[2].weights[1], pack({k: v[:1] for k, v in agents(10.0).items()})[0])


def test_a_failed_member_is_not_offered():
    board = Board()
    ranking = own(4.0, 3.0)._replace(failed=np.array([True, False]))
    island(board, 1, donors=2).gather_ranking(ranking, agents(10.0))
    assert [board.read()[m].weights is None for m in (2, 3)] == [True, False]


def test_lost_weights_are_named():
    board = Board()
    zero = island(board, 0, lost={3})
    island(board, 1).gather_ranking(own(3.0, 4.0), agents(10.0))
    zero.gather_ranking(own(1.0, 2.0), agents(0.0))
    with pytest.raises(MemberLostError) as error:
        zero.fetch(agents(0.0), [3])
    assert error.value.member == 3
    assert board.take_log() == [(0, "The weights of member 3 are lost: it can't be copied.")]
    assert board.take_log() == []


CONFIG: dict[str, Any] = TINY | {"seeds": 4, "engine": "ray", "islands": 2, "pbt": {"bottom": 0.5, "top": 0.25}}


def train(run: Path, board: Board, number: int, lost: set[int]) -> None:
    """An island to its end."""
    config = default_config("td3", **CONFIG).resolved()
    folder = RunFolder(run).island(number)
    folder.create(to_json(config))
    program = build(config, island(board, number, lost=lost))
    Session(program, covey.Run(folder, config, program.policy), Reporter(quiet=True), Hooks()).run()


@pytest.fixture(scope="module")
def ahead(tmp_path_factory) -> tuple[Path, dict[int, MemberReport]]:
    """A run whose island 1 is at its end, and what it has published, as if it were far better than any other."""
    run, board = tmp_path_factory.mktemp("ahead") / "run", Board()
    RunFolder(run).create(to_json(default_config("td3", **CONFIG).resolved()))
    train(run, board, 1, set())
    # What `Here` published, without what it wrapped the weights in.
    plain = {m: n._replace(weights=n.weights and n.weights[1]) for m, n in board.read().items()}
    return run, {m: n._replace(fitness=1000.0 + m if n.weights is not None else 0.0) for m, n in plain.items()}


@pytest.mark.parametrize("is_lost", [False, True])
def test_islands_copy_each_other_unless_weights_are_lost(
    ahead: tuple[Path, dict[int, MemberReport]], tmp_path: Path, is_lost
):
    _, reports = ahead
    board, (best,) = Board(), [m for m, report in reports.items() if report.weights is not None]
    Here(board, 1).publish(reports)
    RunFolder(tmp_path).create(to_json(default_config("td3", **CONFIG).resolved()))
    train(tmp_path, board, 0, {best} if is_lost else set())
    lines = rows(RunFolder(tmp_path).island(0).lineage)
    assert [line["member"] for line in lines] == [0, 1] * 3
    copied = {line["parent"] for line in lines if line["reason"] == "worse"}
    logged = any("are lost" in line for _, line in board.take_log())
    assert (copied, logged) == (set() if is_lost else {best}, is_lost)


def test_the_files_of_the_whole_run(ahead: tuple[Path, dict[int, MemberReport]]):
    """Member by member in the order that pictures and `covey eval` expect."""
    path, reports = ahead
    board = Board()
    Here(board, 1).publish(reports)
    train(path, board, 0, set())
    merge(RunFolder(path), 2, 4)
    run = covey.load(path)
    returns = run.metrics()["eval/return"]
    assert returns["member"] == [0, 1, 2, 3] * 4 and returns["step"] == sorted(returns["step"])
    assert [(line["generation"], line["member"]) for line in rows(path / "lineage.jsonl")] == [
        (g, m) for g in range(3) for m in range(4)
    ]
    episodes = rows(path / "evaluation" / "episodes.jsonl")
    assert len(episodes) == 4 * 4 * 4 and [e["member"] for e in episodes[:16]] == sorted([0, 1, 2, 3] * 4)
    infos = [json.loads(p.read_text()) for p in path.glob("islands/*/checkpoints/best_*/info.json")]
    (kept,) = [json.loads(p.read_text()) for p in path.glob("checkpoints/best_*/info.json")]
    assert len(infos) == 2 and kept["value"] == max(info["value"] for info in infos) == max(returns["value"])
    assert np.isfinite(run.evaluate(episodes=2).mean.centre)
    with pytest.raises(covey.CoveyError, match="islands/0 or "):
        run.save_replay()


def test_an_island_that_is_ahead_is_cut(tmp_path: Path):
    for number, steps in ((0, (0, 100)), (1, (0, 100, 200))):
        folder = RunFolder(tmp_path).island(number)
        folder.episodes.parent.mkdir(parents=True)
        lines = [{"step": s, "generation": s // 100, "member": number, "name": "a", "value": 1.0} for s in steps]
        for path in (folder.metrics, folder.lineage, folder.episodes):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    (tmp_path / "evaluation").mkdir()
    merge(RunFolder(tmp_path), 2, 2)
    for name in ("metrics.jsonl", "lineage.jsonl", "evaluation/episodes.jsonl"):
        assert [(r["step"], r["member"]) for r in rows(tmp_path / name)] == [(0, 0), (0, 1), (100, 0), (100, 1)]


@pytest.mark.parametrize(
    ("capacities", "parts", "expected"),
    [([8], 4, 2), ([2], 4, 0.5), ([3, 3], 3, 1), ([4, 2], 3, 2), ([1], 3, 0.3333), ([0, 0], 2, 0), ([16, 4], 2, 8)],
)
def test_no_part_lies_on_two_machines(capacities: list[float], parts: int, expected: float):
    found = share(capacities, parts)
    assert found == expected
    assert not found or sum(int(c / found + 1e-9) for c in capacities) >= parts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"islands": 3}, "4 members can't be divided among 3 islands.*1 or 2 or 4 islands"),
        ({"pbt": {"replay": "copy", "bottom": 0.5}}, "`pbt.replay` keep, not copy"),
        ({"pbt": {"replay": "share", "bottom": 0.5}}, "`pbt.replay` keep, not share"),
        ({"engine": "local"}, "`islands` 2 needs `engine` ray"),
        ({"pbt": None}, "covey evolve"),
        ({"engine": "dask"}, "`engine` must be one of local, ray, not 'dask'"),
    ],
)
def test_what_can_not_be_divided_among_islands(options: dict[str, Any], message: str):
    with pytest.raises(covey.CoveyError, match=message):
        build(default_config("td3", **(CONFIG | options)).resolved())


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(covey.CoveyError, match=re.escape(install_command("ray"))):
        covey.evolve("td3", members=4, engine="ray", islands=2, out=tmp_path / "run", quiet=True, **TINY)
    assert not (tmp_path / "run").exists()
