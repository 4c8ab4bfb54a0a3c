"""What processes tell each other, as bytes; two real ones are in test_processes.py."""

import jax
import jax.numpy as jnp
import numpy as np

from covey.population.processes import SingleProcess, pack, rows, unpack
from covey.training.sharding import SPLIT, place


def test_bytes_and_back():
    tree = {
        "a": np.array([[1.5, np.nan], [-0.0, np.inf], [1e-45, 2.0]], np.float32),
        "b": np.array([1, 2**31 - 1, -5], np.int32),
        "c": np.zeros((3, 4, 0), np.float32),
        "d": np.array([[True], [False], [True]]),
    }
    back = unpack(pack(tree), tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for name, x in tree.items():
        assert back[name].dtype == x.dtype and back[name].shape == x.shape
        assert back[name].tobytes() == x.tobytes()
    rows = unpack(pack(tree)[[2, 0]], tree)
    np.testing.assert_array_equal(rows["b"], [-5, 1])


def test_a_row_lies_on_one_device():
    x = place(jnp.arange(12.0).reshape(4, 3), 2, SPLIT)
    assert len(x.devices()) == 2
    for i in range(4):
        np.testing.assert_array_equal(rows(x, [i]), [[3 * i, 3 * i + 1, 3 * i + 2]])
    np.testing.assert_array_equal(rows(np.asarray(x), [2]), [[6, 7, 8]])
    np.testing.assert_array_equal(SingleProcess().fetch({"x": x}, [3, 1])["x"], np.asarray(x)[[3, 1]])
