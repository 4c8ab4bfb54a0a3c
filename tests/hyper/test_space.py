"""The search space: scales, steps, limits, texts."""

import numpy as np
import pytest

from covey.agents import REGISTRY
from covey.agents.skills.dads import DADSHyper
from covey.errors import CoveyError
from covey.hyper.names import by_name, with_values
from covey.hyper.range import Range
from covey.hyper.space import draw, explore, parse_range, perturb, range_text

RATE, DISCOUNT, NOISE = Range(1e-5, 1e-1), Range(0.9, 0.999, "one_minus", most=1.0), Range(-2.0, 0.0, "linear", -5.0)


@pytest.mark.parametrize(("space", "middle"), [(RATE, 1e-3), (DISCOUNT, 0.99), (NOISE, -1.0)])
def test_draws_are_uniform_on_their_scale(space: Range, middle: float):
    random = np.random.default_rng(0)
    drawn = np.array([draw(space, random) for _ in range(4000)])
    assert space.low <= drawn.min() and drawn.max() <= space.high
    assert abs(np.mean(drawn < middle) - 0.5) < 0.03


def test_a_step_is_a_factor_or_on_a_linear_scale_a_part_of_the_range():
    random = np.random.default_rng(0)

    def moved(space: Range, value: float) -> list[float]:
        return sorted({round(perturb(space, value, random), 12) for _ in range(50)})

    np.testing.assert_allclose(moved(RATE, 1e-3), [0.8e-3, 1.25e-3])
    np.testing.assert_allclose(moved(DISCOUNT, 0.99), [1 - 0.0125, 1 - 0.008])
    np.testing.assert_allclose(moved(NOISE, -1.0), [-1.2, -0.8])
    np.testing.assert_allclose(moved(NOISE, 0.0), [-0.2, 0.0])
    np.testing.assert_allclose(moved(RATE, 1e-1), [0.8e-1, 1e-1])
    np.testing.assert_allclose(moved(RATE, 1e-9), [1e-5, 1.25e-5])


def test_exploring_resamples_some_values():
    space = {"rate": RATE, "discount": DISCOUNT}
    values, steps = {"rate": 1e-3, "discount": 0.99}, {0.8e-3, 1.25e-3}

    def resampled(probability: float) -> float:
        children = [explore(space, values, probability, np.random.default_rng(i)) for i in range(400)]
        return float(np.mean([all(abs(c["rate"] - s) > 1e-9 for s in steps) for c in children]))

    assert resampled(0.0) == 0.0 and resampled(1.0) == 1.0
    assert abs(resampled(0.25) - 0.25) < 0.06


def test_a_text_and_back():
    for entry in REGISTRY.values():
        for space in entry.space.values():
            found = parse_range("--space.x", range_text(space), space)
            assert found == space if space.searched else found is None
    assert parse_range("--space.x", "1e-4:2e-4", RATE) == RATE._replace(low=1e-4, high=2e-4)
    assert parse_range("--space.x", "0.1:0.2:linear", RATE) == RATE._replace(low=0.1, high=0.2, scale="linear")


@pytest.mark.parametrize(
    ("given", "space", "says"),
    [
        ("1e-3", RATE, "LOW:HIGH"),
        ("a:b", RATE, "LOW:HIGH"),
        ("1e-3:1e-4", RATE, "LOW must be less than HIGH"),
        ("0:1e-4", RATE, "above 0"),
        ("-1:1e-4", RATE, "between 0 and 1e[+]06"),
        ("0.9:1.0", DISCOUNT, "below 1"),
        ("0.9:1.1", DISCOUNT, "between 0 and 1"),
        ("nan:1", RATE, "LOW must be less than HIGH"),
        ("1:inf", RATE, "LOW must be less than HIGH"),
        ("1e-4:1e-3:logg", RATE, "Did you mean 'log'"),
    ],
)
def test_wrong_ranges(given: str, space: Range, says: str):
    with pytest.raises(CoveyError, match=says):
        parse_range("--space.x", given, space)


def test_names_of_nested_values():
    hyper = DADSHyper()
    assert {"sac.actor_lr", "dynamics_lr"} <= by_name(hyper).keys()
    changed = with_values(hyper, {"sac.tau": 0.5, "dynamics_lr": 1.0})
    assert changed.sac.tau == 0.5 and changed.dynamics_lr == 1.0 and changed.sac.actor_lr == hyper.sac.actor_lr
