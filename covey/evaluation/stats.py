"""Means with their 95 % interval, and interquartile means with a bootstrap interval."""

from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval; the ends are NaN if there is only one value."""

    centre: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.centre:z.1f}"
        return f"{self.centre:z.1f} [{self.low:z.1f}, {self.high:z.1f}]"  # z: 0.0, never -0.0


def mean_interval(values: np.ndarray) -> Interval:
    """Returns the mean of independent values with Student's 95 % interval."""
    values = np.asarray(values, np.float64).ravel()
    centre = float(values.mean())
    if values.size < 2:
        return Interval(centre, float("nan"), float("nan"))
    from scipy.special import stdtrit

    half = float(stdtrit(values.size - 1, 0.975)) * float(values.std(ddof=1)) / values.size**0.5
    return Interval(centre, centre - half, centre + half)


def iqm(values: np.ndarray) -> np.ndarray:
    """Returns the interquartile mean along axis 0 (Agarwal et al., 2021, arXiv 2108.13264)."""
    values = np.sort(values, axis=0)
    cut = values.shape[0] // 4
    return values[cut : values.shape[0] - cut].mean(axis=0)


def iqm_interval(values: np.ndarray, draws: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the interquartile mean of seeds [S, points], and the ends of its percentile bootstrap interval."""
    random = np.random.default_rng(0)
    picks = random.integers(0, values.shape[0], (draws, values.shape[0]))
    means = np.stack([iqm(values[pick]) for pick in picks])
    low, high = np.percentile(means, [2.5, 97.5], axis=0)
    return iqm(values), low, high
