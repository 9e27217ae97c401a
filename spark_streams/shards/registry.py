"""What the server knows of a stream in shards: beside its name, written once, before its first row.

    rstream:shards:{orders}    a hash: shards, rule, and once a sink has begun by (the column of the key); made: all
                               shards are there

Key and name are in one slot, so a plain stream of that name cannot come into being while the key does: both are
WATCHed. Shards are made empty with it: one that is missing later is lost, not new. Where the key itself is lost (DEL,
eviction), it is written again from the shards that are found: their names say how many they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.errors import ShardsError
from spark_streams.keys import shards_key
from spark_streams.numbers import whole
from spark_streams.shards.names import MOST, Shard, may_be_in_shards, shards_of
from spark_streams.wire.connection import Reply, ReplyError
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.reply_errors import is_busy_group, is_not_permitted, is_wrong_type
from spark_streams.wire.server import Server

RULE = "crc32"  # of the key's bytes, modulo the number of shards; names as in names.py
_MAKING = "rstream:making"  # a group that is there for a moment, because XGROUP alone makes an empty stream
_PAGE = "docs/shards.md, on another number of shards"
_SHOWN = 300  # characters of a key that cannot be read
_log = logging.getLogger("spark_streams.shards")


@dataclass(frozen=True)
class ShardSet:
    """A stream in shards. by: the column of the key, where a sink has said; is_made: all shards have been there."""

    stream: str
    count: int
    rule: str = RULE
    by: str | None = None
    is_made: bool = False

    @classmethod
    def read(cls, stream: str, flat: Reply) -> ShardSet | None:
        """From HGETALL of its key. Raises ShardsError."""
        if not flat:
            return None
        if isinstance(flat, ReplyError):
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} is no hash: another client has made it, and how many shards "
                f"stream {stream!r} has is not known; delete the key, and its shards are looked for by their names"
            )
        words = [word.decode("utf-8", "replace") for word in flat]
        told = dict(zip(words[0::2], words[1::2], strict=True))
        count = whole(told.get("shards", ""), MOST)
        if not count or told.get("rule") != RULE:
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} says {str(told)[:_SHOWN]}, and this version knows rule {RULE!r} "
                f"with up to {MOST} shards: another version wrote it, or it was changed; put that version back"
            )
        return cls(stream, count, told["rule"], told.get("by"), "made" in told)

    def told(self) -> list[str | int]:
        """What its key holds."""
        words: list[str | int] = ["shards", self.count, "rule", self.rule]
        if self.by is not None:
            words += ["by", self.by]
        return [*words, "made", 1] if self.is_made else words

    @property
    def names(self) -> tuple[str, ...]:
        """Its shards."""
        return shards_of(self.stream, self.count)


def settle(server: Server, stream: str, count: int, by: str | None = None) -> ShardSet:
    """The stream is in so many shards from now on, if it is not already, and all of them are there. by: the column of
    the key, None: a reader does not know it. May be run again.

    Raises ShardsError where it is in another number of shards, by another column or a plain stream, WrongKeyTypeError.
    """
    while True:
        known = _look(server, stream)
        try:
            wanted = _agreed(server, known, stream, count, by)
        except ShardsError:
            server.of(shards_key(stream)).execute("UNWATCH")
            raise
        if known == wanted:
            server.of(shards_key(stream)).execute("UNWATCH")
            break
        if transact(server.of(shards_key(stream)), [("HSET", shards_key(stream), *wanted.told())]) is not None:
            break
    return _made(server, wanted)


def shards_among(server: Server, streams: Sequence[str]) -> dict[str, ShardSet]:
    """Those of these streams that are in shards, by their names; all their shards are there, or one is lost.

    A user who may not look is not told. Raises ShardsError where one is in shards, and a plain stream besides.
    """
    found = _read(server, [stream for stream in streams if may_be_in_shards(stream)])
    sets = {stream: known for stream, (known, _) in found.items() if known is not None}
    for known, is_plain in found.values():
        if known is not None and is_plain:
            raise _both(server, known)
    lost = _lost(server, [stream for stream, (known, is_plain) in found.items() if known is None and not is_plain])
    rebuilt = {stream: settle(server, stream, count) for stream, count in lost.items()}
    return {stream: _made(server, known) for stream, known in sets.items()} | rebuilt


def known_shards(server: Server, streams: Sequence[str]) -> dict[str, ShardSet]:
    """Those of these streams that a key says to be in shards, by their names. It only looks. Raises ShardsError."""
    found = _read(server, [stream for stream in streams if may_be_in_shards(stream)])
    return {stream: known for stream, (known, _) in found.items() if known is not None}


def require_plain(server: Server, stream: str) -> None:
    """Raises ShardsError where rows that go to the stream itself would be read by nobody: it is in shards."""
    if not may_be_in_shards(stream):
        return
    known = known_shards(server, [stream]).get(stream)
    if known is not None:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {known.count} shards, and rows that go to {stream!r} itself "
            f"would be read by nobody: write with options shards={known.count} and shardBy={known.by or 'the key'}, or "
            "to another name"
        )


def require_still(server: Server, streams: Sequence[str]) -> None:
    """Raises ShardsError where one of these, which were plain or not there, has come to be in shards since."""
    for known in known_shards(server, streams).values():
        raise _both(server, known)


def delete(server: Server, known: ShardSet) -> None:
    """All shards with all that is in them, then the key: it says what is to be deleted."""
    for name in known.names:
        server.execute("DEL", name)
    server.execute("DEL", shards_key(known.stream))


# -- looking ------------------------------------------------------------------------------------------------------


def _read(server: Server, streams: Sequence[str]) -> Mapping[str, tuple[ShardSet | None, bool]]:
    """For each of these what is known of its shards, and whether there is a plain stream of that name."""
    replies = server.pipeline([
        command for stream in streams for command in (("HGETALL", shards_key(stream)), ("TYPE", stream))
    ])  # fmt: skip
    found: dict[str, tuple[ShardSet | None, bool]] = {}
    for stream, flat, kind in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_not_permitted(flat) or is_not_permitted(kind):
            found[stream] = (None, True)  # as it was before there were shards
            continue
        for reply, command in ((flat, ("HGETALL", shards_key(stream))), (kind, ("TYPE", stream))):
            if isinstance(reply, ReplyError) and not (is_wrong_type(reply) and reply is flat):
                raise server.error_of(reply, command)
        try:
            found[stream] = (ShardSet.read(stream, flat), kind == b"stream")
        except ShardsError as error:
            if kind != b"stream":
                raise
            # No version writes the key beside a plain stream (both are watched): another client did.
            _log.warning("stream %r at %s is read as a plain stream: %s", stream, server.address, error.message)
            found[stream] = (None, True)
    return found


def _look(server: Server, stream: str) -> ShardSet | None:
    """What is known of the stream, WATCHed with a plain stream of its name. Raises ShardsError where there is one."""
    key = shards_key(stream)
    _, flat, kind = server.of(key).execute_all([("WATCH", key, stream), ("HGETALL", key), ("TYPE", stream)])
    known = ShardSet.read(stream, flat)
    if kind == b"stream":
        server.of(key).execute("UNWATCH")
        raise _both(server, known) if known is not None else _plain(server, stream)
    return known


def _lost(server: Server, streams: Sequence[str]) -> dict[str, int]:
    """Streams of which shards are there though no key says so, and how many: of any number the first one is looked
    for, and all were made with it. Raises ShardsError where they are of several numbers."""
    found: dict[str, int] = {}
    for stream in streams:
        replies = server.pipeline([("EXISTS", Shard(stream, 0, count).name) for count in range(1, MOST + 1)])
        counts = [count for count, reply in enumerate(replies, 1) if not isinstance(reply, ReplyError) and reply]
        if len(counts) > 1:
            raise ShardsError(
                f"key {shards_key(stream).decode()!r} at {server.address} is lost, and there are shards of {stream!r} "
                f"for the numbers {', '.join(map(str, counts))}: say which are read by option shards"
            )
        if counts:
            found[stream] = counts[0]
    return found


# -- settling -----------------------------------------------------------------------------------------------------


def _agreed(server: Server, known: ShardSet | None, stream: str, count: int, by: str | None) -> ShardSet:
    """The set as it is to be. Raises ShardsError where it is another one already."""
    if known is None:
        there = _lost(server, [stream]).get(stream)
        if there is None:
            return ShardSet(stream, count, by=by)
        _log.warning(
            "key %r at %s was lost (evicted or deleted); there are %d shards of %r, and it is written again",
            shards_key(stream).decode(), server.address, there, stream,
        )  # fmt: skip
        known = ShardSet(stream, there, is_made=True)
    if known.count != count:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {known.count} shards, and option shards={count}: which shard "
            f"has a key goes by their number, which stays while rows are there. Set shards={known.count}, or write to "
            f"another name; or have it read to its end, stop who writes and who reads it, and delete it "
            f"(`rstream shards {stream} --delete`), to begin anew ({_PAGE})"
        )
    if by is not None and known.by not in (None, by):
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in shards by column {known.by!r}, and option shardBy={by!r}: "
            f"rows of one key would be in two shards. Set shardBy={known.by}, or write to another name"
        )
    return ShardSet(stream, count, by=known.by or by, is_made=known.is_made)


def _made(server: Server, known: ShardSet) -> ShardSet:
    """The same, all its shards being there: made empty, the first time."""
    if known.is_made:
        return known
    for name in known.names:
        create: tuple[str, ...] = ("XGROUP", "CREATE", name, _MAKING, "0", "MKSTREAM")
        [made] = server.pipeline([create])
        if isinstance(made, ReplyError) and not is_busy_group(made):
            raise server.error_of(made, create)
        server.execute("XGROUP", "DESTROY", name, _MAKING)
    server.execute("HSET", shards_key(known.stream), "made", 1)
    return ShardSet(known.stream, known.count, known.rule, known.by, is_made=True)


def _plain(server: Server, stream: str) -> ShardsError:
    length = server.execute("XLEN", stream)
    if length:
        return ShardsError(
            f"stream {stream!r} at {server.address} is a plain stream with {length:,} entries, whose order nothing "
            "divides: put another name in shards; or have it read to its end, stop who reads it, delete it "
            f"(`redis-cli DEL {stream}`), and begin anew"
        )
    return ShardsError(
        f"stream {stream!r} at {server.address} is a plain stream without entries, as a query makes one that waits for "
        f"it: stop the query, delete the stream (`redis-cli DEL {stream}`), and start the query with option shards, or "
        "after who writes"
    )


def _both(server: Server, known: ShardSet) -> ShardsError:
    length = server.execute("XLEN", known.stream)
    return ShardsError(
        f"stream {known.stream!r} at {server.address} is in {known.count} shards, and there is a plain stream of that "
        f"name, too, with {length:,} entries: see who writes to it; delete it when that is settled "
        f"(`redis-cli DEL {known.stream}`)"
    )
