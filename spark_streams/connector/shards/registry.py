"""Key of a stream in shards: the number of its shards.

    rstream:shards:{orders}    a hash: shards, rule; by (the column of the key) once a sink has begun; made: all shards
                               have been created

The key is written before the first row, and all shards are then created empty: a shard that is missing later is lost,
not new. Key and name are in one slot and WATCHed together, so no plain stream of this name is created beside the key.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import ShardsError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.shards.names import MAX_SHARDS, shards_of
from spark_streams.connector.wire.connection.connection import Reply, ReplyError

RULE = "crc32"  # of the key's bytes, modulo the number of shards; names as in names.py
_SHOWN = 300  # characters of a key that cannot be read


@dataclass(frozen=True)
class ShardSet:
    """A stream in shards. key_column: None if no sink has named it; is_created: all shards were created."""

    stream: str
    count: int
    rule: str = RULE
    key_column: str | None = None
    is_created: bool = False

    @classmethod
    def read(cls, stream: str, flat: Reply) -> ShardSet | None:
        """Return the set, from the reply to HGETALL of the key; None if there is no key. Raises ShardsError."""
        if not flat:
            return None
        if isinstance(flat, ReplyError):
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} is not a hash: another client has written it. So the number of "
                f"shards of stream {stream!r} is not known. Delete the key: then the shards are found by their names"
            )
        words = [word.decode("utf-8", "replace") for word in flat]
        fields = dict(zip(words[0::2], words[1::2], strict=True))
        count = parse_number(fields.get("shards", ""), MAX_SHARDS)
        if not count or fields.get("rule") != RULE:
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} holds {str(fields)[:_SHOWN]}, but this version knows only rule "
                f"{RULE!r} with up to {MAX_SHARDS} shards. Another version wrote the key, or another client changed "
                "it. Install that version again"
            )
        return cls(stream, count, fields["rule"], fields.get("by"), "made" in fields)

    def to_fields(self) -> list[str | int]:
        """Return fields and values of the key."""
        words: list[str | int] = ["shards", self.count, "rule", self.rule]
        if self.key_column is not None:
            words += ["by", self.key_column]
        return [*words, "made", 1] if self.is_created else words

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the shards."""
        return shards_of(self.stream, self.count)
