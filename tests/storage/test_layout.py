"""The arrays of a checkpoint have readable names, and a population comes back from them as it was."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.errors import CoveyError
from covey.storage.layout import (
    HYPER,
    best_arrays,
    is_per_member,
    pack,
    pack_best,
    snapshot,
    unpack,
    unpack_best,
    with_hypers,
)

ROWS = 5


def population(written: int = 3) -> dict[str, Any]:
    """Two members with a replay of ROWS rows."""
    agent = {"actor": [jnp.ones((2, 3)), jnp.zeros((2, 1))]}
    members = {"agent": agent, "key": jax.random.split(jax.random.key(0), 2)}
    data = jnp.arange(2.0 * ROWS * 4).reshape(2, ROWS, 1, 4)
    frames = {"camera": jnp.arange(2 * ROWS * 6, dtype=jnp.uint8).reshape(2, ROWS, 1, 6)}
    replay = {"data": data, "written": jnp.int32(written), "frames": frames}
    return {"members": members, "replay": replay, "block": jnp.int32(7)}


def best() -> dict[str, np.ndarray]:
    return pack_best({"actor": jnp.full((1, 3), 2.0)}, {"tau": jnp.full(1, 0.5)})


def test_names_are_paths():
    arrays = pack(population(), best())
    assert {name: x.shape for name, x in arrays.items()} == {
        "members/agent/actor/0": (2, 3),
        "members/agent/actor/1": (2, 1),
        "members/key": (2, 2),
        "replay/data": (2, 3, 1, 4),
        "replay/written": (),
        "replay/frames/camera": (2, 3, 1, 6),
        "block": (),
        "best/agent/actor": (3,),
        "best/hyper/tau": (),
    }
    assert [name for name in arrays if is_per_member(name)] == [
        *("members/agent/actor/0", "members/agent/actor/1", "members/key", "replay/data", "replay/frames/camera")
    ]


@pytest.mark.parametrize("written", [0, 3, ROWS, 3 * ROWS])
def test_a_population_comes_back(written: int):
    original = population(written)
    found = unpack(jax.eval_shape(lambda: original), pack(original, best()))
    filled = min(written, ROWS)
    for name in ("data", "frames"):
        one, two = found["replay"].pop(name), original["replay"].pop(name)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:, :filled]), one, two)
    assert jax.tree.structure(found) == jax.tree.structure(original)
    for one, two in zip(jax.tree.leaves(snapshot(found)), jax.tree.leaves(snapshot(original)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_best_policy_comes_back():
    """From a checkpoint of either kind."""
    agent_like, hyper_like = jax.eval_shape(lambda: ({"actor": jnp.ones(3)}, {"tau": jnp.ones(())}))
    for arrays in (best(), pack(population(), best())):
        agent, hyper = unpack_best(agent_like, hyper_like, arrays)
        assert agent["actor"].tolist() == [2.0] * 3 and hyper["tau"] == 0.5
        assert best_arrays(arrays).keys() == best().keys()


def test_a_replay_of_another_shape_is_refused():
    arrays = pack(population(), {})
    smaller = population()
    smaller["replay"]["data"] = smaller["replay"]["data"][:, :2]
    for template, changed in ((smaller, arrays), (population(), arrays | {"replay/data": np.zeros(3, np.float32)})):
        with pytest.raises(CoveyError, match="replay in the checkpoint does not match"):
            unpack(template, changed)
    with pytest.raises(CoveyError, match="replay in the checkpoint does not match"):
        unpack(population(), {name: x for name, x in arrays.items() if "camera" not in name})
    del arrays["replay/data"]
    with pytest.raises(CoveyError, match="no replay"):
        unpack(population(), arrays)


def test_two_arrays_of_one_name_are_refused():
    with pytest.raises(CoveyError, match="same name"):
        snapshot({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}})


def test_hyper_parameters_of_a_checkpoint_are_matched_with_those_of_the_program():
    stored = {"members/hyper/tau": np.array([0.1, 0.2], np.float32), "members/hyper/gone": np.zeros(2), "block": 7}
    found = with_hypers(stored, HYPER, {"tau": 0.5, "reward_weights.0": -1.0, "sac.actor_lr": 0.3})
    assert {name: np.asarray(x).tolist() for name, x in found.items()} == {
        "members/hyper/tau": pytest.approx([0.1, 0.2]),
        "members/hyper/reward_weights/0": [-1.0, -1.0],
        "members/hyper/sac/actor_lr": pytest.approx([0.3, 0.3]),
        "block": 7,
    }
    assert with_hypers({"block": 7}, HYPER, {"tau": 0.5}) == {"block": 7}
