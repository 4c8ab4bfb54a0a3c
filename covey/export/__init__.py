"""Exports a trained policy as one file, and proves that the file is the policy."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from covey.errors import require, unknown
from covey.export.check import Proof, prove
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


def export_policy(source: Source, path: Path, kind: str = "") -> Export:
    """Writes a policy to a file, after running the file beside the trained policy.

    Args:
        source: The trained policy.
        path: The file to write.
        kind: `onnx`, `numpy`, `c` or `jax`; by default the one that the suffix stands for.

    Returns:
        The file and the proof.

    Raises:
        CoveyError: The policy can't be written in this format, or the file decides differently. Nothing is written.
    """
    kind = kind or format_of(path)
    if kind not in WRITERS:
        raise unknown("format", kind, WRITERS)
    require(
        path.suffix == SUFFIXES[kind], f"A file of format {kind} ends in {SUFFIXES[kind]}, and {path.name} does not."
    )
    data = WRITERS[kind](source)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, f"policy{path.suffix}")
        trial.write_bytes(data)
        proof = prove(source, open_policy(trial))
    replace_output(path, data)
    return Export(path, proof, len(data))
