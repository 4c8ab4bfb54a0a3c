"""The contract of an exported policy: its inputs and outputs, as every format carries them."""

from typing import Any

import jax
import numpy as np

from covey.export.graph import BATCH, Graph
from covey.export.names import input_name
from covey.export.trace import memory_names
from covey.observation import Observation
from covey.types import EnvSpec

FORMAT, OTHER = 1, 2
"""The version of a contract whose observation is a vector, and of one whose observation has another form."""


def contract(
    spec: EnvSpec, memory: Any, graph: Graph | None, facts: dict[str, Any], inputs: Observation | None = None
) -> dict[str, Any]:
    """Returns the description of an exported policy, for JSON.

    Args:
        spec: Sizes and limits of the environment.
        memory: The memory at the start of an episode.
        graph: The graph, for its noise; None if the file draws its random numbers itself.
        facts: Further facts: environment, algorithm, version, digest of the checkpoint.
        inputs: The parts of the observation that the policy uses, by default all.

    Returns:
        The description. Every array has a leading axis for the batch.
    """
    leaves = [np.asarray(x) for x in jax.tree.leaves(memory)]
    parts = zip(memory_names(memory), leaves, strict=True)
    noise, shapes = (graph.kinds.items(), graph.inputs) if graph else ((), {})
    form = spec.observation if inputs is None else inputs
    return {
        "format": FORMAT if form.is_vector else OTHER,
        **facts,
        **_observation(spec, form),
        "action": {
            "name": "action",
            "shape": [spec.action_size],
            "dtype": "float32",
            "low": list(map(float, spec.action_low)),
            "high": list(map(float, spec.action_high)),
        },
        "memory": [
            {"name": name, "shape": list(x.shape), "dtype": str(x.dtype), "start": x.tolist()} for name, x in parts
        ],
        "noise": [
            {"name": name, "kind": kind, "shape": [size for size in shapes[name].shape if size != BATCH]}
            for name, kind in noise
        ],
        "episode_length": spec.episode_length,
        "steps_per_second": spec.frames_per_second,
    }


def _observation(spec: EnvSpec, form: Observation) -> dict[str, Any]:
    """Returns the inputs for an observation, and the names of the parts of the environment that the policy ignores."""
    parts = [
        {"name": input_name(name), "part": name, "shape": list(part.shown), "dtype": part.dtype}
        for name, part in form.named
    ]
    ignored = [name for name in spec.observation.parts if name not in form.parts]
    described: dict[str, Any] = {"observation": parts}
    if form.is_array:
        described = {"observation": {name: x for name, x in parts[0].items() if name != "part"}}
    return described | ({"ignored": ignored} if ignored else {})
