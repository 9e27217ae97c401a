"""The offset that Spark keeps in its log: per stream, the last entry id of the batch.

A batch is (start, end]: with the group's pending list on the server the two are all that a replay needs (FACTS S5, S6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_streams.errors import OffsetError
from spark_streams.ids import MIN_ID, InvalidStreamId, StreamId

VERSION = 1


class Offset:
    """Positions per stream; a stream that is not named stands at 0-0. Immutable."""

    def __init__(self, positions: Mapping[str, StreamId]) -> None:
        self._positions = dict(positions)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Raises OffsetError for anything that `to_json` of this or an older version did not write."""
        if not isinstance(value, Mapping) or value.get("version") != VERSION:
            raise OffsetError(f"the checkpoint's offset {value!r} is not one of rstream, version {VERSION}")
        try:
            return cls({stream: StreamId.parse(text) for stream, text in value["streams"].items()})
        except (KeyError, AttributeError, TypeError, InvalidStreamId) as error:
            raise OffsetError(f"the checkpoint's offset {value!r} cannot be read: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """`{"version": 1, "streams": {"orders": "1700000000000-0"}}`."""
        return {"version": VERSION, "streams": {stream: str(at) for stream, at in sorted(self._positions.items())}}

    def __getitem__(self, stream: str) -> StreamId:
        return self._positions.get(stream, MIN_ID)

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def moved(self, positions: Mapping[str, StreamId]) -> Offset:
        """This offset with some streams at another position."""
        return Offset({**self._positions, **positions})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offset) and self._positions == other._positions

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._positions.items())))

    def __repr__(self) -> str:
        return f"Offset({self.to_json()['streams']})"
