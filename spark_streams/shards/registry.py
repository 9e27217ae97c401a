"""The key beside a stream's name that says that it is in shards, and in how many.

    rstream:shards:{orders}    a hash: shards, rule; by (the column of the key) once a sink has begun; made: all shards
                               have been created

It is written before the first row. Shards are created empty with it: one that is missing later is lost, not new. Key
and name are in one slot and WATCHed together, so a plain stream of that name cannot come into being beside the key.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.errors import ShardsError
from spark_streams.model.keys import shards_key
from spark_streams.model.numbers import parse_number
from spark_streams.shards.names import MOST, shards_of
from spark_streams.wire.connection.connection import Reply, ReplyError

RULE = "crc32"  # of the key's bytes, modulo the number of shards; names as in names.py
_SHOWN = 300  # characters of a key that cannot be read


@dataclass(frozen=True)
class ShardSet:
    """A stream in shards. by: the column of the key, None: no sink has named it; is_made: all shards were created."""

    stream: str
    count: int
    rule: str = RULE
    by: str | None = None
    is_made: bool = False

    @classmethod
    def read(cls, stream: str, flat: Reply) -> ShardSet | None:
        """Parse HGETALL of the key; None: there is no key. Raises ShardsError."""
        if not flat:
            return None
        if isinstance(flat, ReplyError):
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} is no hash: another client has made it, and how many shards "
                f"stream {stream!r} has is not known; delete the key, and its shards are looked for by their names"
            )
        words = [word.decode("utf-8", "replace") for word in flat]
        told = dict(zip(words[0::2], words[1::2], strict=True))
        count = parse_number(told.get("shards", ""), MOST)
        if not count or told.get("rule") != RULE:
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} says {str(told)[:_SHOWN]}, and this version knows rule {RULE!r} "
                f"with up to {MOST} shards: another version wrote it, or it was changed; put that version back"
            )
        return cls(stream, count, told["rule"], told.get("by"), "made" in told)

    def told(self) -> list[str | int]:
        """Fields and values of the key."""
        words: list[str | int] = ["shards", self.count, "rule", self.rule]
        if self.by is not None:
            words += ["by", self.by]
        return [*words, "made", 1] if self.is_made else words

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its shards."""
        return shards_of(self.stream, self.count)
