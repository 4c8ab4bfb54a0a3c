"""A digest inside a file: 64 characters that are zero while the digest of the whole file is computed."""

import hashlib
import re
from pathlib import Path

from covey.errors import CoveyError, require

SEAL = "covey-sha256:" + "0" * 64
"""What a writer puts somewhere into its file, exactly once."""
PATTERN = re.compile(rb"covey-sha256:([0-9a-f]{64})")
LARGEST = 2 << 30


def sealed(data: bytes) -> bytes:
    """Returns the content of a file with its digest in place of the zeros."""
    assert data.count(SEAL.encode()) == 1
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(SEAL.encode(), f"covey-sha256:{digest}".encode())


def read_sealed(path: Path) -> bytes:
    """Reads a file that `covey export` has written.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        CoveyError: There is no such file, it is no exported policy, or it has changed since it was written.
    """
    try:
        require(path.stat().st_size <= LARGEST, f"{path} is larger than any policy.")
        data = path.read_bytes()
    except OSError as error:
        raise CoveyError(f"{path} can't be read: {error.strerror}.") from None
    found = PATTERN.findall(data)
    require(len(found) == 1, f"{path} is not a policy that `covey export` has written, or it is damaged.")
    digest = hashlib.sha256(PATTERN.sub(SEAL.encode(), data)).hexdigest()
    require(
        digest == found[0].decode(),
        f"{path} has changed since `covey export` wrote it: its digest does not match. Export the policy again.",
    )
    return data
