"""Opens an exported policy of any format. Imports neither JAX nor anything of training, except for the format jax."""

import ctypes
import io
import json
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covey.errors import CoveyError, require
from covey.export import runner
from covey.export.names import c_input_names, c_name, observation_parts
from covey.export.seal import read_sealed

Arrays = dict[str, np.ndarray]
FORMATS = (1, 2)
C_TYPES = {"float32": "float", "int32": "int32_t", "uint8": "uint8_t", "bool": "uint8_t"}


class Opened(Protocol):
    """An exported policy: a function of arrays.

    Args:
        about: Its contract.
        is_exact: The file holds the very program that decides in covey, so not a bit may differ.
    """

    about: dict[str, Any]
    is_exact: bool

    def step(self, inputs: Arrays) -> Arrays:
        """Makes one decision for a batch.

        Args:
            inputs: The parts of the observation, `memory.*` and `noise.*`, each [batch, ...].

        Returns:
            `action` and the new `memory.*`.
        """
        ...


def open_policy(path: Path) -> Opened:
    """Opens an exported policy, after checking its digest."""
    kinds = {".onnx": OnnxPolicy, ".npz": NumpyPolicy, ".jax": JaxPolicy, ".h": CPolicy}
    require(path.suffix in kinds, f"{path}: an exported policy ends in one of {', '.join(kinds)}.")
    data = read_sealed(path)
    try:
        opened = kinds[path.suffix](data)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CoveyError(f"{path} is damaged: {error}") from None
    version = opened.about.get("format")
    require(version in FORMATS, f"{path} has format {version}; this covey reads {FORMATS}. Export it again.")
    return opened


class NumpyPolicy:
    """A policy in a NumPy archive."""

    is_exact = False

    def __init__(self, data: bytes) -> None:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            self.constants = {name: file[name] for name in file.files}
        self.about = json.loads(str(self.constants.pop("about")))
        self.nodes, self.outputs = json.loads(str(self.constants.pop("graph")))

    def step(self, inputs: Arrays) -> Arrays:
        """Makes one decision for a batch."""
        values = runner.run(self.nodes, inputs | self.constants)
        return {name: values[source] for name, source in self.outputs.items()}


class OnnxPolicy:
    """A policy in an ONNX model, run by onnxruntime on one thread."""

    is_exact = False

    def __init__(self, data: bytes) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise CoveyError("An ONNX policy needs onnxruntime: pip install onnxruntime.") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # a policy is too small to share
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["covey"])
        self.names = [each.name.removesuffix("_out") for each in self.session.get_outputs()]
        self.taken = [each.name for each in self.session.get_inputs()]

    def step(self, inputs: Arrays) -> Arrays:
        """Makes one decision for a batch."""
        found = self.session.run(None, {name: np.ascontiguousarray(inputs[name]) for name in self.taken})
        return {name: np.asarray(x) for name, x in zip(self.names, found, strict=True)}


class JaxPolicy:
    """A program of `jax.export`."""

    is_exact = True

    def __init__(self, data: bytes) -> None:
        try:
            import jax
            from jax import export
        except ImportError:
            raise CoveyError("A policy of format jax needs JAX: pip install jax.") from None
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            self.about = json.loads(file.read("about.json"))
            self.program = jax.jit(export.deserialize(bytearray(file.read("program"))).call)

    def step(self, inputs: Arrays) -> Arrays:
        """Makes one decision for a batch."""
        return {name: np.asarray(x) for name, x in self.program(inputs).items()}


class CPolicy:
    """A policy in a C header, compiled here with the C compiler of this machine."""

    is_exact = False

    def __init__(self, data: bytes) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        require(compiler is not None, "A policy in C needs a C compiler (cc, gcc or clang), and none was found.")
        text = data.decode()
        self.about = json.loads(text[text.index("{") : re.search(r"^   \}$", text, re.MULTILINE).end()])  # type: ignore[union-attr]
        self.parts = {each["name"]: each["dtype"] for each in observation_parts(self.about)}
        self.fields = [(each["name"], each["shape"], each["dtype"]) for each in self.about["memory"]]
        self.noise = [each["name"] for each in self.about["noise"]]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "policy.h").write_bytes(data)
            Path(folder, "policy.c").write_text(self._wrapper())
            library = Path(folder, "policy.so")
            command = [str(compiler), "-std=c99", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
            made = subprocess.run(
                [*command, "-o", str(library), f"{folder}/policy.c", "-lm"], capture_output=True, text=True, check=False
            )
            require(made.returncode == 0, f"The C compiler refused the policy: {made.stderr[:500]}")
            self.library = ctypes.CDLL(str(library))

    def _wrapper(self) -> str:
        """Returns C code that takes the memory as one array per part."""
        names = [c_name(name) for name, _, _ in self.fields]
        own = c_input_names(self.parts)
        parts = ", ".join(f"const {C_TYPES[dtype]} *{own[name]}" for name, dtype in self.parts.items())
        arguments = "".join(f", {C_TYPES[dtype]} *m_{c_name(name)}" for name, _, dtype in self.fields)
        noise = "".join(f", const float *{c_name(name)}" for name in self.noise)
        given = "".join(f"{each}, " for each in (*own.values(), *map(c_name, self.noise)))
        copies = [f"memcpy(memory.{n}, m_{n}, sizeof memory.{n});" for n in names]
        back = [f"memcpy(m_{n}, memory.{n}, sizeof memory.{n});" for n in names]
        return (
            '#include "policy.h"\n'
            f"void step({parts}{noise}{arguments}, float *action) {{\n"
            f"  policy_memory memory;\n  policy_reset(&memory);\n  {' '.join(copies)}\n"
            f"  policy_act({given}&memory, action);\n  {' '.join(back)}\n}}\n"
        )

    def step(self, inputs: Arrays) -> Arrays:
        """Makes one decision for a batch, row by row."""
        parts = [np.ascontiguousarray(inputs[name], dtype) for name, dtype in self.parts.items()]
        count = len(parts[0])
        noise = [np.ascontiguousarray(inputs[name], np.float32) for name in self.noise]
        kinds = {name: "uint8" if dtype == "bool" else dtype for name, _, dtype in self.fields}
        memory = [np.array(inputs[name], kind, order="C") for name, kind in kinds.items()]
        action = np.zeros((count, *self.about["action"]["shape"]), np.float32)
        for row in range(count):
            arrays = [*parts, *noise, *memory, action]
            self.library.step(*(ctypes.c_void_p(x[row : row + 1].ctypes.data) for x in arrays))
        after = zip(self.fields, memory, strict=True)
        return {"action": action} | {name: x.astype(dtype) for (name, _, dtype), x in after}
