"""Publishes policies on the Hugging Face Hub or in a folder, and downloads them. Nothing that it reads is executed."""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, require

WANTED = ("README.md", "config.json", "*.onnx", "*.npz", "*.h", "*.png", "*.gif")
"""Files that are downloaded. Code is not among them."""
NAME = re.compile(r"[\w.-]+/[\w.-]+")
LARGEST = 2 << 30


def publish(write: Callable[[Path], None], to: str, private: bool = False) -> str:
    """Publishes the files of a policy.

    Args:
        write: Writes them into a folder.
        to: USER/NAME on the Hub, or a folder, which begins with `.` or `/`.
        private: Makes a new repository on the Hub private.

    Returns:
        Where they are.
    """
    if _is_folder(to):
        write(Path(to))
        return to
    hub = _hub(to)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        try:
            url = hub.HfApi().create_repo(to, private=private, exist_ok=True)
            hub.HfApi().upload_folder(repo_id=to, folder_path=folder, commit_message="Policy exported by covey")
        except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
            raise CoveyError(f"{to} could not be published: {error} Log in first with `hf auth login`.") from None
    return str(url)


def download(source: str, out: Path) -> list[Path]:
    """Downloads the files of a policy.

    Args:
        source: USER/NAME on the Hub, or a folder, which begins with `.` or `/`.
        out: The folder to put them into.

    Returns:
        The files.
    """
    require(not out.exists() or not any(out.iterdir()), f"{out} is not empty. Give another --out.")
    if _is_folder(source):
        return _copied(Path(source), out)
    hub = _hub(source)
    with tempfile.TemporaryDirectory() as folder:
        try:
            hub.snapshot_download(source, allow_patterns=list(WANTED), local_dir=folder)
        except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
            raise CoveyError(f"{source} could not be downloaded: {error}") from None
        return _copied(Path(folder), out)


def _copied(folder: Path, out: Path) -> list[Path]:
    """Copies the wanted files of a folder: regular ones alone, no links."""
    require(folder.is_dir(), f"There is no folder {folder}.")
    files = sorted({file for pattern in WANTED for file in folder.glob(pattern)})
    files = [file for file in files if file.is_file() and not file.is_symlink()]
    require(bool(files), f"{folder} holds no policy.")
    require(sum(file.stat().st_size for file in files) <= LARGEST, f"The files in {folder} are larger than any policy.")
    out.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(file, out / file.name)) for file in files]


def _is_folder(text: str) -> bool:
    return text.startswith((".", "/", "~"))


def _hub(name: str) -> Any:
    """Imports the Hub's library, after checking the name of a repository."""
    require(
        NAME.fullmatch(name) is not None,
        f"{name!r} is neither USER/NAME on the Hugging Face Hub nor a folder, which begins with . or /.",
    )
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
        import huggingface_hub.errors  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CoveyError("The Hugging Face Hub needs its library: pip install huggingface_hub.") from None
    return huggingface_hub
