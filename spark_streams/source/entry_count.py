"""How many entries of a stream were read, of how many that it ever had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_streams.untyped import Json


class Count(NamedTuple):
    """read, added: as above; missed: how much `read` is ahead of what the server says that the group has read, for it
    knows of no loss; shared: others read from the group, so nobody but the server can tell what was read; ahead: the
    group stands above all that the stream has had so far, and what is added below it is none of ours; before: `read`
    is up to where the batch began, and the notes of its tasks tell how many entries they have read (rows_read)."""

    read: int
    added: int
    missed: int = 0
    shared: bool = False
    ahead: bool = False
    before: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Count:
        """Raises KeyError, TypeError, ValueError for anything that `to_json` did not write."""
        return cls(
            int(value["read"]),
            int(value["added"]),
            int(value.get("missed", 0)),
            bool(value.get("shared", False)),
            bool(value.get("ahead", False)),
            bool(value.get("before", False)),
        )

    def to_json(self) -> dict[str, object]:
        """The flags and `missed` only if there is something to say."""
        read, added, *others = self
        told: dict[str, object] = {"read": read, "added": added}
        if any(others):
            told |= {name: value for name, value in zip(Count._fields[2:], others, strict=True) if value}
        return told
