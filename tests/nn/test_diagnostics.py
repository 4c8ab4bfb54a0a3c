"""Metrics of values, targets and TD errors, and histograms, against NumPy. Rows that are not valid hold NaN."""

import jax.numpy as jnp
import numpy as np

from covey.nn.diagnostics import (
    BINS,
    COUNT_BINS,
    UNIT,
    bin_edges,
    count_histogram,
    histogram,
    mean_and_std,
    value_details,
    value_metrics,
)

VALID = np.array([1, 1, 0, 1, 1, 0, 1, 1], np.float32)
KEPT = VALID > 0
INNER = UNIT * (2.0 ** np.arange(16) - 1)
EDGES = np.concatenate([[-np.inf], -INNER[:0:-1], INNER, [np.inf]])


def rows(seed: int, *shape: int) -> np.ndarray:
    """Random rows on axis 0, NaN where they are not valid."""
    x = np.random.default_rng(seed).normal(2.0, 3.0, (len(VALID), *shape)).astype(np.float32)
    x[~KEPT] = np.nan
    return x


def test_moments_of_the_valid_rows():
    x = rows(0)
    mean, std = mean_and_std(jnp.asarray(x), jnp.asarray(VALID))
    np.testing.assert_allclose([mean, std], [x[KEPT].mean(), x[KEPT].std()], rtol=1e-5)
    assert np.isfinite(mean_and_std(jnp.full(8, 3e38), jnp.asarray(VALID))).all(), "a metric must not stop a run"


def test_metrics_of_values():
    q, y = rows(1), rows(2)
    found = value_metrics(jnp.asarray(q), jnp.asarray(y), jnp.asarray(VALID))
    q, y = q[KEPT], y[KEPT]
    wanted = {
        "q_mean": q.mean(),
        "q_std": q.std(),
        "target_mean": y.mean(),
        "target_std": y.std(),
        "td_error_mean": (y - q).mean(),
        "td_error_std": (y - q).std(),
        "explained_variance": max(-1.0, 1 - (y - q).var() / y.var()),
    }
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-4, err_msg=name)


def test_explained_variance_of_good_useless_and_bad_values():
    y = rows(3)
    cases = [(y + 5.0, 1.0), (np.full_like(y, 7.0), 0.0), (0.5 * y, 0.75), (-9.0 * y, -1.0)]
    for q, wanted in cases:
        found = value_metrics(jnp.asarray(q), jnp.asarray(y), jnp.asarray(VALID))["explained_variance"]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    constant = value_metrics(jnp.asarray(y), jnp.ones(8), jnp.asarray(VALID))["explained_variance"]
    assert float(constant) == 0.0


def test_details_of_every_critic_and_reward():
    values, target = np.stack([rows(4, 2), rows(5, 2), rows(6, 2)]), rows(7, 2)
    found = value_details(jnp.asarray(values), jnp.asarray(target), jnp.asarray(VALID), ("gain", "cost"))
    for r, reward in enumerate(("gain", "cost")):
        np.testing.assert_array_equal(
            found[f"{reward}_target_histogram"], histogram(jnp.asarray(target[:, r]), jnp.asarray(VALID))
        )
        for critic in range(3):
            own = f"critic_{critic}_{reward}_"
            q, y = values[critic, KEPT, r], target[KEPT, r]
            np.testing.assert_allclose(found[f"{own}q_mean"], q.mean(), rtol=1e-4)
            np.testing.assert_allclose(found[f"{own}td_error_std"], (y - q).std(), rtol=1e-4)
            shares = np.histogram(y - q, EDGES)[0] / KEPT.sum()
            np.testing.assert_allclose(found[f"{own}td_error_histogram"], shares, atol=1e-6)
    alone = value_details(jnp.asarray(values[..., :1]), jnp.asarray(target[:, :1]), jnp.asarray(VALID))
    assert {"target_histogram", "critic_2_q_histogram", "critic_0_explained_variance"} <= alone.keys()


def test_bins_double_away_from_zero():
    x = np.array([0.0, 0.005, 0.02, -0.02, 1e9, -1e9, 5.0, -0.001], np.float32)
    valid = np.ones(8, np.float32)
    found = np.asarray(histogram(jnp.asarray(x), jnp.asarray(valid)))
    assert found.shape == (BINS,) == (len(EDGES) - 1,)
    np.testing.assert_allclose(found, np.histogram(x, EDGES)[0] / 8, atol=1e-6)
    assert found[0] == found[-1] == 1 / 8, "the outermost bins hold what lies beyond"
    np.testing.assert_allclose(bin_edges("agent/q_histogram", BINS)[1:-1], EDGES[1:-1], rtol=1e-12)
    random = np.random.default_rng(0).normal(0, 20, 1000).astype(np.float32)
    found = histogram(jnp.asarray(random), jnp.ones(1000))
    np.testing.assert_allclose(found, np.histogram(random, EDGES)[0] / 1000, atol=2e-3)


def test_bins_of_counts():
    counts = np.array([1, 1, np.nan, 2, 3, np.nan, 8, 4000], np.float32)
    found = count_histogram(jnp.asarray(counts), jnp.asarray(VALID))
    wanted = np.zeros(COUNT_BINS)
    wanted[[0, 1, 3, 9]] = np.array([2, 2, 1, 1]) / 6
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert bin_edges("agent/collected_repeats_histogram", COUNT_BINS)[:4] == [1, 2, 4, 8]
    assert bin_edges("agent/repeat_probabilities", 4) == [0, 0.25, 0.5, 0.75, 1]
