"""Who is replaced by whom, and with which values."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from covey.errors import CoveyError
from covey.hyper.range import Range
from covey.hyper.space import draw_hypers
from covey.population.pbt import PBT, Ranking, best, decide, is_worse, losers

SPACE = {"rate": Range(1e-6, 1e1), "discount": Range(0.9, 0.999, "one_minus")}


def ranking(fitness: list[float], failed: tuple[int, ...] = ()) -> Ranking:
    members = len(fitness)
    flags = np.isin(np.arange(members), failed)
    scores = np.array(fitness)[:, None] + np.arange(5.0)[None]
    hypers = {"rate": 10.0 ** -np.linspace(1, 4, members), "discount": np.linspace(0.95, 0.99, members)}
    return Ranking(np.array(fitness), scores, flags, hypers)


def test_the_worst_of_all_copy_the_best():
    found = decide(PBT(bottom=0.5, top=0.25), SPACE, ranking([3, 8, 1, 7, 5, 6, 2, 4]), seed=0, generation=1)
    replaced = {m for m, successor in enumerate(found) if successor.reason == "worse"}
    assert replaced == {0, 2, 6, 7}
    assert {found[m].parent for m in replaced} <= {1, 3}
    for member in (1, 3, 4, 5):
        assert found[member].parent == member and found[member].reason == "kept"
        assert found[member].hyper["rate"] == ranking([0] * 8).hypers["rate"][member]


@pytest.mark.parametrize(("bottom", "top"), [(0.5, 0.5), (0.3, 0.7), (0.9, 0.1), (0.25, 0.25)])
def test_no_member_is_donor_and_loser_at_once(bottom: float, top: float):
    """However both shares are rounded: of three members at 0.5 and 0.5, two are copied and one is replaced."""
    pbt = PBT(bottom=bottom, top=top)
    for members in range(2, 12):
        known = ranking(list(range(members)))
        replaced, donors = losers(pbt, known), best(known, pbt.donors(members))
        assert not {*replaced} & {*donors.tolist()}
        if (members, bottom) == (3, 0.5):
            assert replaced == [0] and donors.tolist() == [2, 1]
        if bottom == 0.25:
            assert len(replaced) == round(members / 4)


def test_children_inherit_and_differ():
    """QDax draws anew once per donor: its clones are twins, and the donor's values are lost."""
    known = ranking([9, 1, 2, 3, 4, 5, 6, 7])
    found = decide(PBT(bottom=0.75, top=0.125, resample=0.0), SPACE, known, seed=0, generation=1)
    children = [successor for successor in found if successor.reason == "worse"]
    assert len(children) == 6 and {successor.parent for successor in children} == {0}
    rates = [successor.hyper["rate"] / known.hypers["rate"][0] for successor in children]
    assert all(min(abs(r - 0.8), abs(r - 1.25)) < 1e-9 for r in rates)
    apart = [(1 - successor.hyper["discount"]) / (1 - known.hypers["discount"][0]) for successor in children]
    assert all(min(abs(r - 0.8), abs(r - 1.25)) < 1e-9 for r in apart)
    drawn = decide(PBT(bottom=0.75, top=0.125, resample=1.0), SPACE, known, seed=0, generation=1)
    assert len({successor.hyper["rate"] for successor in drawn}) == 8, "every clone has a draw of its own"


def test_a_generation_follows_from_seed_and_number():
    known = ranking([9, 1, 2, 3, 4, 5, 6, 7])
    one, same = (decide(PBT(), SPACE, known, seed=0, generation=1) for _ in range(2))
    assert one == same
    assert one != decide(PBT(), SPACE, known, seed=0, generation=2)
    assert one != decide(PBT(), SPACE, known, seed=1, generation=1)


def test_what_is_not_finite_never_wins():
    known = ranking([np.nan, np.inf, 3.0, -np.inf, 2.0, 100.0, 1.0, 0.0], failed=(5,))
    found = decide(PBT(bottom=0.125, top=0.25), SPACE, known, seed=0, generation=1)
    reasons = [successor.reason for successor in found]
    assert reasons == [
        "failed",
        "failed",
        "kept",
        "failed",
        "kept",
        "failed",
        "kept",
        "kept",
    ]
    assert {successor.parent for successor in found if successor.reason == "failed"} <= {2, 4}


def test_a_rescue_replaces_failed_members_alone():
    known = ranking([5, 4, 3, 2], failed=(0,))
    found = decide(PBT(bottom=0.5), SPACE, known, seed=0, generation=1, rescue=7)
    reasons = [successor.reason for successor in found]
    assert reasons == ["failed", "kept", "kept", "kept"] and found[0].parent == 1


def test_all_failed_is_an_error():
    with pytest.raises(CoveyError, match="All 3 members have failed"):
        decide(PBT(), SPACE, ranking([np.nan, 1.0, np.inf], failed=(1,)), seed=0, generation=1)


def test_no_member_is_replaced_with_a_bottom_of_0():
    known = ranking([1, 2, 3, 4])
    assert losers(PBT(bottom=0.0), known) == []
    found = decide(PBT(bottom=0.0), SPACE, known, seed=0, generation=1)
    assert [successor.parent for successor in found] == [0, 1, 2, 3]


def test_equal_members_are_told_apart_by_number():
    assert losers(PBT(bottom=0.25), ranking([1, 1, 1, 1])) == [3]
    assert best(ranking([1, 1, 1, 1]), 2).tolist() == [0, 1]


@pytest.mark.parametrize("gap", [0.0, 0.5, 1.0, 3.0, -2.0])
def test_welch(gap: float):
    random = np.random.default_rng(3)
    scores = np.stack([random.normal(0, 1, 20), random.normal(gap, 3, 20)])
    known = Ranking(scores.mean(axis=1), scores, np.zeros(2, bool), {})
    p = ttest_ind(scores[0], scores[1], equal_var=False, alternative="less").pvalue
    for level in (0.01, 0.05, 0.2):
        assert is_worse(known, 0, 1, level) == (p < level)
    assert is_worse(known, 0, 1, 0.0)


def test_welch_keeps_members_that_are_not_significantly_worse():
    scores = np.array([[0.0, 10.0, 5.0], [1.0, 9.0, 6.0], [-90.0, -91.0, -92.0], [2.0, 9.0, 5.0]])
    known = Ranking(scores.mean(axis=1), scores, np.zeros(4, bool), {"rate": np.full(4, 1e-3)})
    found = decide(PBT(bottom=0.5, significance=0.05), {"rate": SPACE["rate"]}, known, seed=0, generation=1)
    reasons = [successor.reason for successor in found]
    assert reasons == ["kept", "kept", "worse", "kept"]
    flat = Ranking(np.array([1.0, 2.0]), np.array([[1.0, 1.0], [2.0, 2.0]]), np.zeros(2, bool), {})
    assert is_worse(flat, 0, 1, 0.05) and not is_worse(flat, 1, 0, 0.05)


def test_members_begin_apart_and_as_they_would_elsewhere():
    whole = draw_hypers(SPACE, 7, range(8))
    assert len(set(whole["rate"].tolist())) == 8
    np.testing.assert_array_equal(whole["rate"][4:], draw_hypers(SPACE, 7, range(4, 8))["rate"])
    assert not np.array_equal(whole["rate"], draw_hypers(SPACE, 8, range(8))["rate"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bottom": 0.6, "top": 0.5}, "overlap"),
        ({"bottom": -0.1}, "`pbt.bottom` must lie in"),
        ({"top": 0.0}, "there must be a member to copy"),
        ({"resample": 2.0}, "`pbt.resample` must lie in"),
        ({"interval": -1}, "`pbt.interval` must be at least 0"),
    ],
)
def test_wrong_rules(options: dict, says: str):
    with pytest.raises(CoveyError, match=says):
        PBT(**options)
