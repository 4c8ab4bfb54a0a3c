"""Opens, reads, writes and syncs files of a run folder.

All calls of the storage layer to the operating system are made here, so that a test can let each of them fail. Nothing
is read or written through a symbolic link, and only regular files are opened.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey.errors import CoveyError

PARTIAL = ".partial"
"""The ending of the temporary name of a file or folder that is being written."""
CHUNK = 2**20
"""Bytes that are read or written at once."""
MOST_PARENTS = 6
"""An upper bound of the folders between a run folder and a file in it, with those of an island."""
_SAFE = os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO or a device must not block
Buffer = bytes | bytearray | memoryview


class DamagedError(CoveyError):
    """The content of a file is not as covey wrote it."""


class NotRegularError(DamagedError):
    """A link, folder, FIFO, device or socket has the name of a regular file."""


class UnreadableError(CoveyError):
    """The operating system refused to read a file, which may be intact."""


def read_error(path: Path, error: OSError) -> UnreadableError:
    """Returns the error for a file that can't be read. It says nothing about the content."""
    return UnreadableError(
        f"{error.filename or path} can't be read: {error.strerror or error}. It may be intact, so nothing was changed. "
        "Check its permissions and the disk, then try again."
    )


def open_to_read(path: Path, follow: bool = False) -> int:
    """Opens a regular file. With `follow` it may be a symbolic link, because the user named it."""
    return _open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))


def open_to_append(path: Path) -> int:
    """Opens a regular file at its end; creates it if it does not exist, and never truncates it."""
    refuse_links(path)
    return _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _open(path: Path, flags: int) -> int:
    try:
        handle = os.open(path, flags | _SAFE, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(f"{path} is a symbolic link, which covey does not follow. Remove it.") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise NotRegularError(f"{path} is not a regular file.") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotRegularError(f"{path} is not a regular file.")
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def reading(path: Path, follow: bool = False) -> Iterator[int]:
    """Opens a file as `open_to_read` does, and closes it at the end."""
    handle = open_to_read(path, follow)
    try:
        yield handle
    finally:
        os.close(handle)


def read_all(handle: int, limit: int, path: Path) -> bytes:
    """Reads a whole file, which must not be longer than `limit` bytes."""
    found = bytearray()
    while part := os.pread(handle, min(CHUNK, limit + 1 - len(found)), len(found)):
        found += part
        if len(found) > limit:
            raise DamagedError(f"{path} is longer than {limit:,} bytes.")
    return bytes(found)


def read_into(handle: int, buffer: memoryview, offset: int) -> None:
    """Fills a buffer with the bytes of a file from an offset on."""
    while buffer:
        count = os.preadv(handle, [buffer], offset)
        if not count:
            raise DamagedError("it ends too early")
        buffer = buffer[count:]
        offset += count


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Reads up to `size` bytes from an offset on; returns none at the end of the file."""
    return os.pread(handle, size, offset)


def read_chunks(handle: int, offset: int = 0) -> Iterator[memoryview]:
    """Yields the bytes of a file from an offset on. Every chunk reuses the memory of the one before."""
    buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(handle, [buffer], offset):
        yield buffer[:count]
        offset += count


def file_size(handle: int) -> int:
    """Returns the bytes of an open file."""
    return os.fstat(handle).st_size


def sha256_of(handle: int) -> str:
    """Returns the SHA-256 of an open file."""
    digest = hashlib.sha256()
    for chunk in read_chunks(handle):
        digest.update(chunk)
    return digest.hexdigest()


def create(path: Path) -> int:
    """Creates a file that must not exist, and opens it to write."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_new(path: Path, parts: Iterable[Buffer]) -> str:
    """Creates a file, writes and syncs it. Returns its SHA-256."""
    digest = hashlib.sha256()
    handle = create(path)
    try:
        for part in parts:
            digest.update(part)
            write_all(handle, part)
        sync(handle)
    finally:
        close(handle)
    return digest.hexdigest()


def write_all(handle: int, data: Buffer) -> None:
    """Writes all bytes, in several calls if the operating system takes only some at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def write_at(handle: int, data: Buffer, offset: int) -> None:
    """Overwrites a few bytes at an offset."""
    if os.pwrite(handle, data, offset) != len(data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def truncate(handle: int, length: int) -> None:
    """Cuts an open file to a length."""
    os.ftruncate(handle, length)


def sync(handle: int) -> None:
    """Flushes an open file to the disk."""
    os.fsync(handle)


def close(handle: int) -> None:
    """Closes a file."""
    os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, so that a rename survives a power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system can't sync folders
            raise
    finally:
        os.close(handle)


def partial_path(path: Path) -> Path:
    """Returns the temporary name under which a file or folder is written."""
    if path.name in ("", ".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(path.name + PARTIAL)


def make_folder(path: Path, parents: bool = False) -> None:
    """Creates a folder if it does not exist; with `parents`, its missing parents too."""
    refuse_links(path / "file")
    if path.is_dir():
        return
    if parents and not path.parent.exists():
        make_folder(path.parent, parents=True)
    with suppress(FileExistsError):  # another process may have made it meanwhile
        os.mkdir(path)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    sync_folder(path.parent)


def list_folder(folder: Path) -> list[str]:
    """Returns the sorted names in a folder, none if it does not exist. Raises OSError if it can't be read."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def exists(path: Path) -> bool:
    """Returns whether a path exists, be it a broken link. Raises OSError if that can't be known."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def rename(old: Path, new: Path) -> None:
    """Renames a file or folder; a file that has the new name is replaced."""
    os.rename(old, new)


def remove(path: Path) -> None:
    """Removes a file, a link, or a folder with its content, if it exists."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return


def refuse_links(path: Path) -> None:
    """Raises a CoveyError if a folder between a run folder and this path is a symbolic link.

    The run folder itself and its parents may be links.
    """
    folders = [Path(os.path.abspath(path)).parent]
    folders += folders[0].parents
    linked = [i for i, folder in enumerate(folders[:MOST_PARENTS]) if folder.is_symlink()]
    for i in linked:
        if any(_is_run_folder(folder) for folder in folders[i + 1 : MOST_PARENTS + 1]):
            raise CoveyError(
                f"{folders[i]} is a symbolic link, and covey writes through none in a run folder. Put a folder in its "
                "place, or move the whole run and link to that."
            )


def _is_run_folder(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json") and os.path.lexists(folder / "checkpoints")
