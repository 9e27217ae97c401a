"""Commit mark: the value of the key `rstream:committed:{stream}:<group>:<consumer>`.

    5-0 12.5f1c9a0b-e37d41aa    batch 12 of the stream is committed, its token is 5f1c9a0b-e37d41aa, and it ends at 5-0
    5-0 12.5f1c9a0b-noAck       the same, read without a pending list: nothing is ever pending
    5-0 0.37                    the query begins above 5-0; 37 entries were ever added up to there ("unknown" if not
                                counted), and no batch has read above it
    5-0 0.5f1c9a0b-first        a first batch above 5-0 is logged, and not committed
    5-0 12.5f1c9a0b-e37d41aa replay    the same, and since then an operator has made entries up to there pending again
                                (`rstream replay`)
    5-0 12.seek                 an operator has set the group to 5-0 (`rstream groups seek`) after batch 12

A token is the name of the checkpoint and the name of the batch. The number goes on under a new checkpoint: so of two
marks of a stream the one with the higher number is the later one. A mark of another checkpoint proves where the group
stood, and nothing about the age of this one.

The mark is written after the last entry of its batch was acknowledged. So it proves that they are acknowledged, also on
a server that was restored, and an older copy of the checkpoint has a lower number, or the same number and another
token.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from spark_streams.base.ids import InvalidStreamId, StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.keys import key_beside

UNKNOWN = "unknown"
_SEEK, _REPLAY = "seek", "replay"
SOUGHT = "sought"  # token of the last batch before the group was moved, for a new checkpoint
_FIRST = "first"
NO_PENDING_LIST = "noAck"  # the option of a query without a pending list, and the name of its batches


def next_token(before: str) -> str:
    """Return a name for the next batch. before: token of the batch before, "": this one is the checkpoint's first."""
    return f"{checkpoint_of(before) or secrets.token_hex(4)}-{secrets.token_hex(4)}"


def checkpoint_of(token: str) -> str:
    """Return the name of the checkpoint in a token; "" if it has none, as the tokens of the first versions."""
    checkpoint, dash, _ = token.partition("-")
    return checkpoint if dash else ""


def without_pending_list(token: str) -> str:
    """Return the token that the streams of a batch without a pending list have."""
    return f"{checkpoint_of(token)}-{NO_PENDING_LIST}"


class Mark(NamedTuple):
    """The value of a stream's key."""

    id: StreamId  # position of the query
    number: int  # of the batch that ends there, counted per stream
    token: str  # name of the batch
    has_replay: bool = False  # entries up to there were made pending again since, which the query has to read

    @classmethod
    def parse(cls, value: bytes | None) -> Mark | None:
        """Return the mark; None if there is no value, or if this version cannot read it."""
        entry_id, _, name = (value or b"").decode("utf-8", "replace").partition(" ")
        name, _, more = name.partition(" ")
        number, dot, token = name.partition(".")
        batch = parse_number(number)
        if batch is None or not dot or more not in ("", _REPLAY):
            return None
        try:
            return cls(StreamId.parse(entry_id), batch, token, more == _REPLAY)
        except InvalidStreamId:
            return None

    @classmethod
    def at_begin(cls, position: StreamId, read: int | None) -> Mark:
        """Return the mark of a query that begins at a position. read: entries ever added up to there."""
        return cls(position, 0, UNKNOWN if read is None else str(read))

    @classmethod
    def of_first_batch(cls, position: StreamId, token: str) -> Mark:
        """Return the mark while a stream's first batch above a position is logged and not committed."""
        return cls(position, 0, f"{checkpoint_of(token)}-{_FIRST}")

    @classmethod
    def of_seek(cls, position: StreamId, before: Mark | None) -> Mark:
        """Return the mark after an operator has set the group. before: the mark by then. It keeps the number, so a
        server that has lost acknowledgements before is noticed, and the checkpoint of that batch as an older copy."""
        return cls(position, 0 if before is None else before.number, _SEEK)

    def __str__(self) -> str:
        return f"{self.id} {self.number}.{self.token}" + (f" {_REPLAY}" if self.has_replay else "")

    @property
    def checkpoint(self) -> str:
        return checkpoint_of(self.token)

    @property
    def has_pending_list(self) -> bool:
        """Whether the entries of the batch were pending until they were acknowledged."""
        return self.token.rpartition("-")[2] != NO_PENDING_LIST

    @property
    def is_seek(self) -> bool:
        return self.token == _SEEK

    @property
    def is_begin(self) -> bool:
        """Whether a query begins here of which no batch was logged: nothing above is acknowledged."""
        return self.number == 0 and not self.checkpoint and not self.is_seek

    @property
    def read_at_begin(self) -> int | None:
        """How many entries were ever added up to where the query begins. None: unknown, or it has committed a batch."""
        return parse_number(self.token) if self.number == 0 else None


def committed_key(stream: str | bytes, group: str, consumer: str) -> bytes:
    """Return the key of one stream's mark."""
    return key_beside(stream, "committed", group, consumer)
