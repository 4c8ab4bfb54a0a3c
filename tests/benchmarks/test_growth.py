"""The page about growth: exponents of hand-made measurements, and that the page is what the measurements say."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.campaign import read_rows

ROOT = Path(__file__).parents[2]
SIZES = np.array([1.0, 4.0, 16.0, 64.0, 256.0])


@pytest.mark.parametrize(
    ("values", "k", "says"),
    [
        (np.full(5, 3.0), 0.0, "constant"),
        (2.0 * SIZES, 1.0, "at most linear"),
        (10.0 + SIZES, np.log(266 / 26) / np.log(16), "at most linear"),  # of the upper half: 16, 64 and 256
        (SIZES**1.5, 1.5, "**more than linear**"),
    ],
)
def test_exponents(values: np.ndarray, k: float, says: str):
    found = growth.exponent(SIZES, values)
    assert abs(found - k) < 1e-9 and growth.verdict("members", found) == says


def test_the_weights_are_the_square_of_the_width():
    assert growth.verdict("width", 2.0) == "linear in the weights"
    assert growth.verdict("width", 2.5) == "**more than linear in the weights**"


def test_the_page_is_current():
    page = (ROOT / growth.PAGE).read_text()
    rows = read_rows(growth.FILE)
    assert growth.render(page, rows) == page, "run `python -m benchmarks.growth --table`"
    assert {row["against"] for row in rows} == growth.PARTS.keys() == growth.AXES.keys()
