"""The commands that ship a policy: export, push, load."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from covey.cli.arguments import joined, parse
from covey.errors import CoveyError, require


@dataclass(frozen=True)
class ExportOptions:
    """Writes the best policy of a run to one file that runs without covey, and proves that the file is the policy.

    The file contains the normaliser, the scaling of actions and the policy's memory. At the end it is run beside the
    trained policy on 1,000 observations of real episodes. If they differ by more than 1e-5 of the range of an action,
    nothing is written.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    format: Literal["onnx", "numpy", "c", "jax", "auto"] = "auto"
    """onnx: for onnxruntime, in any language. numpy: an archive for covey/export/runner.py, which needs only NumPy. c:
    a header. jax: a program of jax.export. auto: by the suffix of --out, or onnx."""
    out: Path | None = None
    """The file to write: .onnx, .npz, .h or .jax; by default export/policy.* in the run folder."""
    skill: str = ""
    """For a skill agent: the number of a skill that `covey skills` shows, or its coordinates, as in 0.5,-1."""
    member: int | None = None
    """The member of a population, or the seed's position; by default the best policy of the run."""
    explore: bool = False
    """Export the exploring policy: its random numbers are inputs of the file."""
    check: Path | None = None
    """Write nothing; compare this file with the run again."""
    model_card: bool = False
    """Also write a README.md for the policy beside it, with its return, curve, animation, versions and command."""


def export(arguments: list[str]) -> None:
    from covey.api import load
    from covey.publish import model_card
    from covey.storage.folder import disk_errors

    options = parse(ExportOptions, joined(arguments, "--skill"), "export")
    run = load(options.run)
    if options.check:
        print(f"{options.check} is the policy of {options.run}: {run.check_export(options.check)}")
        return
    kind = "" if options.format == "auto" else options.format
    how: dict[str, Any] = {"skill": _skill(options.skill), "member": options.member, "explore": options.explore}
    with disk_errors((options.out or run.path).parent):
        made = run.export(options.out, format=kind, **how)
        print(f"{made.path}: {made.size / 1e6:.2f} MB, {made.proof}")
        if made.path.suffix == ".npz":
            print(f"{_runner(made.path.parent)}: runs it with NumPy alone")
        if options.model_card:
            print(model_card(run, made.path.parent))


def _runner(folder: Path) -> Path:
    """Copies the runner, which needs only NumPy, beside the policy."""
    from covey.export import runner
    from covey.storage.atomic import replace_output

    file = folder / "runner.py"
    replace_output(file, Path(runner.__file__).read_bytes())
    return file


def _skill(text: str) -> Any:
    """Returns the number or the coordinates of a skill."""
    if not text:
        return None
    try:
        return int(text) if text.isdecimal() else [float(x) for x in text.split(",")]
    except ValueError:
        raise CoveyError(f"--skill must be a number, or numbers separated by commas, not {text!r}.") from None


@dataclass(frozen=True)
class PushOptions:
    """Publishes the best policy of a run with its model card, on the Hugging Face Hub or in a folder."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    to: tyro.conf.Positional[str]
    """USER/NAME on the Hub, or a folder, which begins with . or /."""
    private: bool = False
    """Make a new repository on the Hub private."""


def push(arguments: list[str]) -> None:
    from functools import partial

    from covey.api import load
    from covey.export.hub import publish
    from covey.publish import write_bundle

    options = parse(PushOptions, arguments, "push")
    run = load(options.run)
    print(publish(partial(write_bundle, run), options.to, options.private))


@dataclass(frozen=True)
class LoadOptions:
    """Downloads a policy that `covey push` has published. Nothing of it is executed."""

    source: tyro.conf.Positional[str]
    """USER/NAME on the Hub, or a folder, which begins with . or /."""
    out: Path | None = None
    """Where to put the files; by default policies/NAME."""


def load(arguments: list[str]) -> None:
    from covey.export.hub import download
    from covey.export.policy import load_policy

    options = parse(LoadOptions, arguments, "load")
    out = options.out or Path("policies") / Path(options.source).name
    files = download(options.source, out)
    policies = [file for file in files if file.suffix in (".onnx", ".npz")]
    require(bool(policies), f"{options.source} holds no policy.")
    about = load_policy(policies[0]).about
    print(f"{about['algorithm']} on {about['environment']}, covey {about['covey']}")
    print("\n".join(map(str, files)))
