"""Writes the file of a policy, after proving that it is the policy."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from covey.errors import require, unknown
from covey.export.check import Proof, check_is_greedy, prove
from covey.export.opened import open_policy
from covey.export.source import Source
from covey.export.writers import SUFFIXES, WRITERS, format_of
from covey.storage.atomic import replace_output


class Export(NamedTuple):
    """An exported policy.

    Args:
        path: The file.
        proof: How far it differs from the trained policy.
        size: Its size in bytes.
    """

    path: Path
    proof: Proof
    size: int


def check_policy(path: Path, source: Callable[[dict[str, Any]], Source]) -> Proof:
    """Compares a file with the policy that it should be.

    Args:
        path: The file.
        source: Returns the trained policy, for the contract in the file.

    Returns:
        The result.

    Raises:
        CoveyError: The file was changed, was made of another policy, or decides differently.
    """
    opened = open_policy(path)
    found = source(opened.about)
    own, other = (str(each.get("checkpoint")) for each in (found.facts, opened.about))
    require(
        own == other, f"{path} was made of the checkpoint {other[:12]}, and the run has {own[:12]}. Export it again."
    )
    return prove(found, opened)


def export_policy(source: Source, path: Path, kind: str = "") -> Export:
    """Writes a policy to a file, after running the file beside the trained policy.

    Args:
        source: The trained policy.
        path: The file to write, or a folder, for policy.onnx (.npz, .h, .jax) in it.
        kind: `onnx`, `numpy`, `c` or `jax`; by default the one that the suffix stands for, or onnx in a folder.

    Returns:
        The file and the proof.

    Raises:
        CoveyError: The policy can't be written in this format, or the file decides differently. Nothing is written.
    """
    kind = kind or (format_of(path) if path.suffix else "onnx")
    if kind not in WRITERS:
        raise unknown("format", kind, WRITERS)
    path = path if path.suffix else path / f"policy{SUFFIXES[kind]}"
    require(
        path.suffix == SUFFIXES[kind], f"A file of format {kind} ends in {SUFFIXES[kind]}, and {path.name} does not."
    )
    if not source.explore:
        check_is_greedy(source)
    data = WRITERS[kind](source)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, f"policy{path.suffix}")
        trial.write_bytes(data)
        proof = prove(source, open_policy(trial))
    replace_output(path, data)
    return Export(path, proof, len(data))
