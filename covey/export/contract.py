"""The contract of an exported policy: its inputs and outputs, as every format carries them."""

from typing import Any

import jax
import numpy as np

from covey.export.graph import BATCH, Graph
from covey.export.trace import memory_names
from covey.types import EnvSpec

FORMAT = 1


def contract(spec: EnvSpec, memory: Any, graph: Graph | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of an exported policy, for JSON.

    Args:
        spec: Sizes and limits of the environment.
        memory: The memory at the start of an episode.
        graph: The graph, for its noise; None if the file draws its random numbers itself.
        facts: Further facts: environment, algorithm, version, digest of the checkpoint.

    Returns:
        The description. Observations and actions are float32; every array has a leading axis for the batch.
    """
    leaves = [np.asarray(x) for x in jax.tree.leaves(memory)]
    parts = zip(memory_names(memory), leaves, strict=True)
    noise, inputs = (graph.kinds.items(), graph.inputs) if graph else ((), {})
    return {
        "format": FORMAT,
        **facts,
        "observation": {"name": "obs", "shape": [spec.obs_size], "dtype": "float32"},
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
            {"name": name, "kind": kind, "shape": [size for size in inputs[name].shape if size != BATCH]}
            for name, kind in noise
        ],
        "episode_length": spec.episode_length,
        "steps_per_second": spec.frames_per_second,
    }
