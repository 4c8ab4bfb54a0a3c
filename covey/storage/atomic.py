"""Replaces a file so that a reader, or a machine that loses power, sees the old content or the new, never a part.

The new content is written under a temporary name, synced, and renamed. This is the only way in which covey replaces a
file.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey.storage import disk


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Opens an empty file under a temporary name, which replaces `path` at the end.

    If `path` is a symbolic link, the link is replaced and its target stays as it is. If the block raises, the temporary
    file is removed and `path` stays as it is.

    Example:
        >>> with replacing(Path("config.json")) as handle:
        ...     write_all(handle, b"{}")
    """
    disk.refuse_links(path)
    partial = disk.partial_path(path)
    disk.remove(partial)
    handle = disk.create(partial)
    try:
        try:
            yield handle
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(partial, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(partial)  # if the disk is full, the user needs the space
        raise
    disk.sync_folder(path.parent)


def replace_bytes(path: Path, data: disk.Buffer) -> None:
    """Replaces a file by these bytes."""
    with replacing(path) as handle:
        disk.write_all(handle, data)


def replace_text(path: Path, text: str) -> None:
    """Replaces a file by this text."""
    replace_bytes(path, text.encode())


def replace_output(path: Path, data: disk.Buffer) -> None:
    """Replaces a file that the user may have named: creates its folder first if necessary."""
    disk.make_folder(path.parent, parents=True)
    replace_bytes(path, data)
