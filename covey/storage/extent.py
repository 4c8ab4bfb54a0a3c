"""The part of a growing file that a checkpoint relies on."""

from typing import Any, NamedTuple

from covey.storage.documents import is_count


class Extent(NamedTuple):
    """The first `length` bytes of a file, and the CRC-32 of these bytes."""

    length: int
    crc: int

    def as_json(self) -> dict[str, int]:
        """Returns the extent as JSON values."""
        return self._asdict()


EMPTY = Extent(0, 0)


def as_extent(value: Any) -> Extent | None:
    """Returns the extent in JSON values, or None if they are not one."""
    if isinstance(value, dict) and value.keys() == {"length", "crc"} and all(is_count(x) for x in value.values()):
        return Extent(**value)
    return None
