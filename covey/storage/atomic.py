"""The one way to open, write and replace files of a run folder.

What is written appears whole or not at all and goes through no symbolic link; what is read is a regular file. All calls
to the operating system are made here, so that a test can let each of them fail.
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
CHUNK = 2**20
"""Bytes that are read or written at once."""
DEPTH = 6
"""The folders between the run folder and a file in it are fewer, those of an island included."""
_SAFE = os.O_CLOEXEC | os.O_NONBLOCK  # an open FIFO or device must not make us wait
Buffer = bytes | bytearray | memoryview


class DamagedError(CoveyError):
    """Content that covey has not written so."""


class NotRegularError(DamagedError):
    """A link, folder, FIFO, device or socket where a regular file belongs."""


class UnreadableError(CoveyError):
    """A file that may be intact, but that the operating system did not let us read."""


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """The error for a file that can't be read, which says nothing about its content."""
    return UnreadableError(
        f"{error.filename or path} can't be read: {error.strerror or error}. It may be intact, so nothing was changed. "
        "Check its permissions and the disk, then try again."
    )


def open_to_read(path: Path, follow: bool = False) -> int:
    """A descriptor of a regular file. `follow`: the user named it, so that it may be a symbolic link."""
    return _opened(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))


def open_to_append(path: Path) -> int:
    """A descriptor of a regular file, which is created where there is none and never truncated."""
    refuse_links(path)
    return _opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _opened(path: Path, flags: int) -> int:
    try:
        handle = os.open(path, flags | _SAFE, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(f"{path} is a symbolic link, which covey does not follow. Remove it.") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise NotRegularError(f"{path} is not a regular file.") from None
        raise
    try:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
    except OSError:
        os.close(handle)
        raise
    if not regular:
        os.close(handle)
        raise NotRegularError(f"{path} is not a regular file.")
    return handle


@contextmanager
def reading(path: Path, follow: bool = False) -> Iterator[int]:
    """`open_to_read`, closed at the end."""
    handle = open_to_read(path, follow)
    try:
        yield handle
    finally:
        os.close(handle)


def read_bytes(handle: int, limit: int, path: Path) -> bytes:
    """All bytes of an open file, which must not be longer than a limit."""
    found = bytearray()
    while part := os.pread(handle, min(CHUNK, limit + 1 - len(found)), len(found)):
        found += part
        if len(found) > limit:
            raise DamagedError(f"{path} is longer than {limit:,} bytes.")
    return bytes(found)


def read_into(handle: int, buffer: memoryview, offset: int) -> None:
    """Fills a buffer with the bytes of a file from an offset on."""
    while buffer:
        number = os.preadv(handle, [buffer], offset)
        if not number:
            raise DamagedError("it ends too early")
        buffer, offset = buffer[number:], offset + number


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes of a file from an offset on; none at its end."""
    return os.pread(handle, size, offset)


def size_of(handle: int) -> int:
    """Bytes of an open file."""
    return os.fstat(handle).st_size


def read_parts(handle: int, offset: int = 0) -> Iterator[memoryview]:
    """The bytes of a file from an offset on, each part in the memory of the one before."""
    buffer = memoryview(bytearray(CHUNK))
    while number := os.preadv(handle, [buffer], offset):
        yield buffer[:number]
        offset += number


def digest_of(handle: int) -> str:
    """The SHA-256 of an open file."""
    digest = hashlib.sha256()
    for part in read_parts(handle):
        digest.update(part)
    return digest.hexdigest()


def write_all(handle: int, data: Buffer) -> None:
    """Writes everything, in several calls where one takes only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def write_at(handle: int, data: Buffer, offset: int) -> None:
    """Writes a few bytes over those at an offset."""
    if os.pwrite(handle, data, offset) != len(data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def truncate(handle: int, length: int) -> None:
    os.ftruncate(handle, length)


def sync(handle: int) -> None:
    """Brings a file to the disk."""
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk, so that a rename survives the loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def close(handle: int) -> None:
    os.close(handle)


def create(path: Path) -> int:
    """A descriptor of a file that did not exist before."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def write_new(path: Path, parts: Iterable[Buffer]) -> str:
    """Writes a file that did not exist before, to the disk. Returns its SHA-256."""
    digest, handle = hashlib.sha256(), create(path)
    try:
        for part in parts:
            digest.update(part)
            write_all(handle, part)
        os.fsync(handle)
    finally:
        os.close(handle)
    return digest.hexdigest()


def partial_of(path: Path) -> Path:
    """The temporary name under which a file is written."""
    if path.name in ("", ".."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(path.name + PARTIAL)


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """A descriptor of an empty file, `partial_of(path)`, which becomes `path` when it is complete.

    Where `path` is a symbolic link, the link is replaced and what it points to is left alone.
    """
    refuse_links(path)
    partial = partial_of(path)
    remove(partial)
    handle = create(partial)
    try:
        try:
            yield handle
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            remove(partial)  # on a full disk, the half that was written is space that the user needs
        raise
    sync_folder(path.parent)


def replace_bytes(path: Path, data: Buffer) -> None:
    """Writes a file so that it is there whole or not at all."""
    with replacing(path) as handle:
        write_all(handle, data)


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    replace_bytes(path, text.encode())


def replace_output(path: Path, data: Buffer) -> None:
    """`replace_bytes`, and makes the folders around the file: for a path that the user may have named."""
    make_folder(path.parent, parents=True)
    replace_bytes(path, data)


def rename(old: Path, new: Path) -> None:
    os.rename(old, new)


def make_folder(path: Path, parents: bool = False) -> None:
    """Makes a folder where there is none; with `parents`, those around it too."""
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


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if there is no such folder. A folder that can't be read is an error."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def is_there(path: Path) -> bool:
    """Whether there is something by that name. An error where that can't be known."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove(path: Path) -> None:
    """Removes a file, a link or a folder with all that is in it, if there is one."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return


def refuse_links(path: Path) -> None:
    """Raises a CoveyError where a folder between a run folder and a file in it is a symbolic link.

    The run folder itself, and what lies around it, may be links.
    """
    folders = [Path(os.path.abspath(path)).parent]
    folders += folders[0].parents
    linked = [i for i, folder in enumerate(folders[:DEPTH]) if folder.is_symlink()]
    for i in linked:
        if any(_is_run(folder) for folder in folders[i + 1 : DEPTH + 1]):
            raise CoveyError(
                f"{folders[i]} is a symbolic link, and covey writes through none in a run folder. Put a folder in its "
                "place, or move the whole run and link to that."
            )


def _is_run(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json") and os.path.lexists(folder / "checkpoints")
