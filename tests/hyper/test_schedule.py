import jax.numpy as jnp
import numpy as np
import pytest

from covey.errors import CoveyError
from covey.hyper.schedule import Schedule, as_schedules, hyper_at, initial_hyper, parse_schedule


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.25", [0.25, 0.25, 0.25, 0.25]),
        ("linear:0.3:0.1", [0.3, 0.2, 0.1, 0.1]),
        ("linear:0.3:0.1:50", [0.3, 0.1, 0.1, 0.1]),
        ("exponential:1:0.01", [1.0, 0.1, 0.01, 0.01]),
        ("cosine:1:0", [1.0, 0.5, 0.0, 0.0]),
        ("linear:0:-2", [0.0, -1.0, -2.0, -2.0]),
    ],
)
def test_values_at_the_start_middle_end_and_after(text, values):
    schedule = parse_schedule("--hyper.x", text, 100)
    found = [hyper_at((0.25,), (schedule,), jnp.int32(step))[0] for step in (0, 50, 100, 1000)]
    np.testing.assert_allclose(found, values, atol=1e-6)


def test_cosine_is_slow_at_its_ends():
    schedule = Schedule("cosine", 1.0, 0.0, 100)
    np.testing.assert_allclose(schedule(jnp.int32(10)), 0.5 + 0.5 * np.cos(0.1 * np.pi), rtol=1e-5)


@pytest.mark.parametrize("text", ["", "x", "linear:1", "linear:1:2:3:4", "linear:1:x", "nan", "inf", "linear:1:2:0"])
def test_what_is_not_a_schedule(text):
    with pytest.raises(CoveyError, match=r"--hyper\.x"):
        parse_schedule("--hyper.x", text, 100)


def test_mistyped_kinds_and_signs():
    with pytest.raises(CoveyError, match="Did you mean 'linear'"):
        parse_schedule("--hyper.x", "liner:1:2", 100)
    with pytest.raises(CoveyError, match="same sign"):
        parse_schedule("--hyper.x", "exponential:1:0", 100)


@pytest.mark.parametrize("text", ["0.1", "linear:0.3:0.05:20000", "exponential:1:0.01:7", "1e-05", "0.12345678901"])
def test_a_schedule_reads_back_what_it_writes(text):
    schedule = parse_schedule("--hyper.x", text, 100)
    assert parse_schedule("--hyper.x", str(schedule), 999) == schedule


def test_constants():
    assert initial_hyper(as_schedules((1.0, 2.0))) == (1.0, 2.0)
