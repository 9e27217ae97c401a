"""Commit mark: the value of the key `rstream:committed:{stream}:<group>:<consumer>`.

    5-0 12.5f1c9a0be37d    batch 12 of the stream is committed, its token is 5f1c9a0be37d, and it ends at 5-0
    5-0 0.37               the query begins above 5-0; 37 entries were ever added up to there ("unknown" if not counted)
    5-0 0.seek             an operator has set the group to 5-0 (`rstream groups seek`)
    5-0 12.noAck           batch 12 was read with noAck: nothing is ever pending

The mark is written after the last entry of its batch was acknowledged. So it proves that they are acknowledged, also on
a server that was restored, and an older copy of the checkpoint has a lower number, or the same number and another
token.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_streams.model.ids import InvalidStreamId, StreamId
from spark_streams.model.keys import key_beside
from spark_streams.model.numbers import parse_number

UNKNOWN, SEEK, NO_ACK = "unknown", "seek", "noAck"


class Mark(NamedTuple):
    """id: position of the query; number: of the batch that ends there, counted per stream; token: name of the batch."""

    id: StreamId
    number: int
    token: str

    @classmethod
    def parse(cls, value: bytes | None) -> Mark | None:
        """Return the mark; None if there is no value, or if this version cannot read it."""
        entry_id, _, name = (value or b"").decode("utf-8", "replace").partition(" ")
        number, dot, token = name.partition(".")
        batch = parse_number(number)
        if batch is None or not dot:
            return None
        try:
            return cls(StreamId.parse(entry_id), batch, token)
        except InvalidStreamId:
            return None

    @classmethod
    def at_begin(cls, position: StreamId, read: int | None) -> Mark:
        """Return the mark of a query that begins at a position. read: entries ever added up to there."""
        return cls(position, 0, UNKNOWN if read is None else str(read))

    def __str__(self) -> str:
        return f"{self.id} {self.number}.{self.token}"

    @property
    def no_ack(self) -> bool:
        """Whether the batch was read without a pending list."""
        return self.token == NO_ACK

    @property
    def is_seek(self) -> bool:
        """Whether an operator has set the group."""
        return self.token == SEEK

    @property
    def read_at_begin(self) -> int | None:
        """How many entries were ever added up to the position at which the query begins. None: unknown, or the query
        has committed a batch."""
        return parse_number(self.token) if self.number == 0 else None


def committed_key(stream: str | bytes, group: str, consumer: str) -> bytes:
    """Return the key of one stream's mark."""
    return key_beside(stream, "committed", group, consumer)
