"""Putting a stream in shards, once, and finding those that are; everything that is lost is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_streams.errors import NotPermittedError, ShardsError
from spark_streams.model.keys import shards_key
from spark_streams.shards.names import may_be_in_shards
from spark_streams.shards.registry import ShardSet
from spark_streams.shards.survey import Survey, both, look, require_whole
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact
from spark_streams.wire.replies.reply_errors import is_busy_group

_MAKING = "rstream:making"  # a group that is there for a moment, because XGROUP alone makes an empty stream
_PAGE = "docs/guide/order-by-key.md, on the number of shards"
_log = logging.getLogger("spark_streams.shards")


def settle(server: Server, stream: str, count: int, by: str | None = None, accepts_loss: bool = False) -> ShardSet:
    """Put a stream in so many shards, unless it is, and return them. by: the column of the key, None: a reader does
    not know it; accepts_loss: lost shards are created again, empty, with a warning. May be run again.

    Raises ShardsError if it is in another number of shards, by another column or a plain stream, or if shards are lost;
    WrongKeyTypeError.
    """
    home = server.of(shards_key(stream))
    while True:
        home.execute("WATCH", shards_key(stream), stream)
        try:
            found = look(server, [stream])[stream]
            if found.refusal is not None:
                raise server.error_of(found.refusal, ("HGETALL", shards_key(stream)))
            wanted = _agreed(server, found, count, by, accepts_loss)
        except (ShardsError, NotPermittedError):
            home.execute("UNWATCH")
            raise
        if found.registered == wanted:
            home.execute("UNWATCH")
            break
        if transact(home, [("HSET", shards_key(stream), *wanted.told())]) is not None:
            break
    return _made(server, wanted)


def shards_among(server: Server, streams: Sequence[str], accepts_loss: bool = False) -> dict[str, ShardSet]:
    """The shards of those of these streams that are in shards. A lost key is written again.

    A user who may not look gets none. Raises as settle does.
    """
    found = look(server, [stream for stream in streams if may_be_in_shards(stream)])
    sets: dict[str, ShardSet] = {}
    for stream, one in found.items():
        require_whole(server, one, accepts_loss)
        if one.known is not None:
            sets[stream] = one.known if one.is_whole else settle(server, stream, one.known.count, None, accepts_loss)
    return sets


def known_shards(server: Server, streams: Sequence[str]) -> dict[str, ShardSet]:
    """The same, changing nothing. Raises ShardsError if shards are lost, or there is a plain stream besides."""
    found = look(server, [stream for stream in streams if may_be_in_shards(stream)])
    for one in found.values():
        require_whole(server, one)
    return {stream: one.known for stream, one in found.items() if one.known is not None}


def require_plain(server: Server, stream: str) -> None:
    """Raise ShardsError if rows that are written to the stream itself would be read by nobody: it is in shards."""
    known = known_shards(server, [stream]).get(stream)
    if known is not None:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {known.count} shards, and rows that go to {stream!r} itself "
            f"would be read by nobody: write with options shards={known.count} and shardBy={known.by or 'the key'}, or "
            "to another name"
        )


def require_still(server: Server, streams: Sequence[str]) -> None:
    """Raise ShardsError if one of these, which were plain or did not exist, has been put in shards since."""
    for one in look(server, [stream for stream in streams if may_be_in_shards(stream)]).values():
        if one.registered is not None:
            raise both(server, one)


def _agreed(server: Server, found: Survey, count: int, by: str | None, accepts_loss: bool) -> ShardSet:
    """The set as it is to be. Raises ShardsError."""
    known, stream = found.known, found.stream
    require_whole(server, found, accepts_loss)
    if found.plain is not None:
        raise _plain(server, stream, found.plain)
    if known is None:
        return ShardSet(stream, count, by=by)
    if found.registered is None:
        _log.warning(
            "key %r at %s was lost (evicted or deleted); there are %d shards of %r, and it is written again",
            shards_key(stream).decode(), server.address, known.count, stream,
        )  # fmt: skip
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
    if found.lost:
        _log.warning(
            "shards of %r at %s are lost and are created again, empty: %s",
            stream, server.address, ", ".join(found.lost),
        )  # fmt: skip
    return ShardSet(stream, count, by=known.by or by, is_made=known.is_made and not found.lost)


def _made(server: Server, known: ShardSet) -> ShardSet:
    """The same set with all its shards: those that do not exist are created empty."""
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


def _plain(server: Server, stream: str, length: int) -> ShardsError:
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
