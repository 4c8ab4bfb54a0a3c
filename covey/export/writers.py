"""Writes a policy in each of the formats, as the content of one file."""

import io
import json
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from covey.errors import CoveyError, require
from covey.export.c_file import c_header
from covey.export.contract import contract
from covey.export.graph import Graph
from covey.export.names import input_name
from covey.export.onnx_file import onnx_model
from covey.export.seal import SEAL, sealed
from covey.export.source import Source, as_keys
from covey.export.trace import memory_names, trace
from covey.install import install_command

PLATFORMS = ("cpu", "cuda", "tpu")


def graph_of(source: Source, batched: bool = True) -> Graph:
    """Traces a policy as a graph."""
    how = {"batched": batched, "explore": source.explore}
    return trace(source.function, source.inputs, source.start(), source.key, **how)


def contract_of(source: Source, graph: Graph | None) -> dict[str, Any]:
    """Returns the contract of a policy."""
    return contract(source.spec, source.start(), graph, source.facts, source.inputs)


def require_package(name: str, kind: str) -> None:
    """Raises an error that names the command if a package is not installed."""
    installed = find_spec(name) is not None
    require(installed, f"The format {kind} needs {name}. Install it:\n  {install_command('export')}")


def write_onnx(source: Source) -> bytes:
    """Returns a policy as an ONNX model; its metadata hold the contract."""
    require_package("onnx", "onnx")
    require_package("onnxruntime", "onnx")
    graph = graph_of(source)
    about = contract_of(source, graph)
    return sealed(onnx_model(graph, {"covey": json.dumps(about), "seal": SEAL}))


def write_numpy(source: Source) -> bytes:
    """Returns a policy as a NumPy archive, for `covey/export/runner.py`."""
    graph = graph_of(source)
    about = contract_of(source, graph)
    nodes = [(node.op, node.inputs, node.output.name, node.attributes) for node in graph.nodes]
    texts = {"about": np.array(json.dumps(about)), "graph": np.array(json.dumps([nodes, graph.outputs]))}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **(graph.constants | texts))  # type: ignore[arg-type]
    return _with_seal(buffer)


def write_c(source: Source) -> bytes:
    """Returns a policy as a C header."""
    graph = graph_of(source, batched=False)
    about = contract_of(source, graph)
    start = dict(zip(memory_names(source.start()), map(np.asarray, jax.tree.leaves(source.start())), strict=True))
    text = f"{SEAL}\n{json.dumps(about, indent=1)}"
    return sealed(c_header(graph, start, "policy", text).encode())


def write_jax(source: Source) -> bytes:
    """Returns a policy as a program of `jax.export`, for CPU, CUDA and TPU, beside its contract."""
    require_package("flatbuffers", "jax")
    start = source.start()
    leaves, structure = jax.tree.flatten(start)
    names = memory_names(start)
    form = source.inputs

    def step(inputs: dict[str, Any]) -> dict[str, Any]:
        memory = jax.tree.unflatten(structure, [inputs[name] for name in names])
        keys = as_keys(inputs["key"]) if source.explore else source.key
        many = jax.vmap(source.function, (0, 0, 0 if source.explore else None))
        obs = form.of_names({name: inputs[input_name(name)] for name in form.parts})
        action, new = many(obs, memory, keys)
        return {"action": action} | dict(zip(names, jax.tree.leaves(new), strict=True))

    (batch,) = export.symbolic_shape("batch")
    arrays = {input_name(name): jax.ShapeDtypeStruct(part.shown, part.dtype) for name, part in form.named}
    arrays |= dict(zip(names, map(jnp.asarray, leaves), strict=True))
    if source.explore:
        arrays["key"] = jnp.zeros(2, jnp.uint32)
    shapes = {name: jax.ShapeDtypeStruct((batch, *x.shape), x.dtype) for name, x in arrays.items()}
    program = export.export(jax.jit(step), platforms=PLATFORMS)(shapes).serialize()
    about = contract_of(source, None)
    if source.explore:
        about["noise"] = [{"name": "key", "kind": "key", "shape": [2]}]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("about.json", json.dumps(about, indent=1))
        file.writestr("program", bytes(program))
    return _with_seal(buffer)


def _with_seal(archive: io.BytesIO) -> bytes:
    """Returns an archive with its digest as the comment at its end."""
    with zipfile.ZipFile(archive, "a") as file:
        file.comment = SEAL.encode()
    return sealed(archive.getvalue())


WRITERS: dict[str, Callable[[Source], bytes]] = {
    "onnx": write_onnx,
    "numpy": write_numpy,
    "c": write_c,
    "jax": write_jax,
}
SUFFIXES = {"onnx": ".onnx", "numpy": ".npz", "c": ".h", "jax": ".jax"}


def format_of(path: Any) -> str:
    """Returns the format that the suffix of a file stands for."""
    for name, suffix in SUFFIXES.items():
        if str(path).endswith(suffix):
            return name
    known = ", ".join(f"{suffix} ({name})" for name, suffix in SUFFIXES.items())
    raise CoveyError(f"{path} does not tell its format. The suffix must be one of: {known}.")
