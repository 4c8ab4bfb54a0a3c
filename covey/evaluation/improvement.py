"""The probability that a member of one run beats a member of another, with its bootstrap interval."""

import numpy as np


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the share of pairs of seeds in which `ours` is higher; ties count half (Agarwal et al., 2021)."""
    difference = ours[:, None] - theirs[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def improvement_interval(ours: np.ndarray, theirs: np.ndarray, draws: int = 2000) -> tuple[float, float, float]:
    """Returns the probability of improvement, and the ends of its bootstrap interval over both sets of seeds."""
    random = np.random.default_rng(0)
    values = [
        probability_of_improvement(random.choice(ours, ours.size), random.choice(theirs, theirs.size))
        for _ in range(draws)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return probability_of_improvement(ours, theirs), float(low), float(high)
