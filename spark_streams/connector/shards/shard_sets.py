"""Streams in shards on the server: fetch their state, create and delete them. If shards are lost, the error names them.

    rstream:shards:{orders}    a hash: shards, rule; by (the column of the key) once a sink has begun; made: all shards
                               have been created

The key is written before the first row, and all shards are then created empty: a shard that is missing later is
lost, not new. Key and name are in one slot and WATCHed together, so no plain stream of this name is created
beside the key.

one round trip       HGETALL key   TYPE stream   XLEN stream
with a key           TYPE of each shard
without a key        EXISTS of all names that a shard of the stream can have, unless a plain stream has been used:
                     the key may be lost, and any shards with it. 32,896 names, 8 ms (R124), in portions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import MIN_ID
from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import NotPermittedError, ShardsError
from spark_streams.connector.keys import RetryStream, delays_key, read_retry_stream, shards_key
from spark_streams.connector.operator_commands import command_on, delete_shards_command, shell_words
from spark_streams.connector.shards.names import MAX_SHARDS, may_be_in_shards, possible_names, shards_of
from spark_streams.connector.wire.connection import Reply, ReplyError, Server
from spark_streams.connector.wire.replies import (
    is_busy_group,
    is_no_such_key,
    is_not_permitted,
    is_wrong_type,
    transact,
)
from spark_streams.connector.wire.scan import list_streams
from spark_streams.connector.wire.xinfo import stream_in

RULE = "crc32"  # of the key's bytes, modulo the number of shards; names as in names.py
_KEPT = 300  # characters of a key that cannot be read
_SHOWN = 8  # names in a message
_PORTION = 1 << 20  # characters of the names that are asked for at once
_MAKING = "rstream:making"  # a group that exists for a moment: only XGROUP creates an empty stream
_PAGE = "rstream help order-by-key, on the number of shards"
_log = logging.getLogger("spark_streams.shards")


@dataclass(frozen=True)
class ShardSet:
    """A stream in shards."""

    stream: str  # its logical name
    count: int  # number of shards
    rule: str = RULE  # that selects the shard of a key
    key_column: str | None = None  # None if no sink has named it
    is_created: bool = False  # all shards were created

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
                f"key {shards_key(stream).decode()!r} holds {str(fields)[:_KEPT]}, but this version knows only rule "
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
        return shards_of(self.stream, self.count)


@dataclass(frozen=True)
class ShardsSnapshot:
    """State of one stream on the server."""

    stream: str
    registered: ShardSet | None = None  # the set in its key
    plain: int | None = None  # length of a plain stream of that name; None if there is none
    existing: Mapping[int, Sequence[str]] = field(default_factory=dict)  # the shards that exist, by their number
    refusal: ReplyError | None = None  # the user may not read the state

    @property
    def shard_set(self) -> ShardSet | None:
        """The set in the key or, without a key, the set of the shards that exist. None: no shards, or shards of several
        numbers."""
        if self.registered is not None or len(self.existing) != 1:
            return self.registered
        [count] = self.existing
        return ShardSet(self.stream, count, is_created=True)

    @property
    def is_complete(self) -> bool:
        """Whether there are a key and all shards."""
        return self.registered is not None and self.registered.is_created and not self.lost

    @property
    def lost(self) -> tuple[str, ...]:
        """Shards that were created and do not exist now."""
        shard_set = self.shard_set
        if shard_set is None or not shard_set.is_created:
            return ()
        existing = set(self.existing.get(shard_set.count, ()))
        return tuple(name for name in shard_set.names if name not in existing)


def fetch_shards_snapshots(server: Server, streams: Sequence[str]) -> dict[str, ShardsSnapshot]:
    """Fetch the state of streams whose names can be in shards. Raises ShardsError for a key that cannot be read, and
    the named error of a command that the server refuses, unless the user lacks rights."""
    commands = [
        command
        for stream in streams
        for command in (("HGETALL", shards_key(stream)), ("TYPE", stream), ("XLEN", stream))
    ]
    replies = server.execute_all(commands, is_not_permitted, is_wrong_type)
    snapshots: dict[str, ShardsSnapshot] = {}
    for stream, *of_stream in zip(streams, replies[0::3], replies[1::3], replies[2::3], strict=True):
        snapshots[stream] = snapshot = _of_replies(server, stream, *of_stream)
        if (shard_set := snapshot.registered) is not None:
            existing = _existing_keys(server, shard_set.names, count_hidden=True)
            snapshots[stream] = replace(snapshot, existing={shard_set.count: existing})
    for stream in _may_have_lost_its_key(server, snapshots.values()):
        snapshots[stream] = replace(snapshots[stream], existing=_search_shards(server, stream))
    return snapshots


def require_complete(server: Server, snapshot: ShardsSnapshot, accepts_loss: bool = False) -> None:
    """Raise ShardsError if there are shards and a plain stream, or shards of several numbers without a key, or, unless
    accepts_loss, if shards are lost."""
    if snapshot.plain is not None and (snapshot.registered is not None or snapshot.existing):
        raise plain_and_shards(server, snapshot)
    if snapshot.shard_set is None and snapshot.existing:
        stream, numbers = snapshot.stream, sorted(snapshot.existing)
        delete = delete_shards_command(stream, "--count", str(numbers[0]))
        raise ShardsError(
            f"key {shards_key(stream).decode()!r} at {server.address} is lost, and stream {stream!r} has "
            f"shards for the numbers {', '.join(map(str, numbers))}. Rows of one key may be in several of "
            f"them. Read the shards of the number that you do not use, with streamsPattern='{stream}:*/"
            f"{numbers[0]}:*'. Then delete them: `{delete}`, which "
            "refuses while entries are unread"
        )
    if snapshot.lost and not accepts_loss:
        raise _lost(server, snapshot)


def plain_and_shards(server: Server, snapshot: ShardsSnapshot) -> ShardsError:
    """Return the error for a stream that is in shards while a plain stream of its name exists."""
    shard_set = snapshot.shard_set or ShardSet(snapshot.stream, min(snapshot.existing))
    quoted = shell_words([snapshot.stream])
    return ShardsError(
        f"stream {snapshot.stream!r} at {server.address} is in {shard_set.count} shards, but there is also a plain "
        f"stream of that name (entries: {snapshot.plain or 0:,}). Find and stop its writer, then rename that stream "
        f"(`redis-cli RENAME {quoted} NEW-NAME` keeps its entries), or delete it (`redis-cli DEL {quoted}`)"
    )


def _lost(server: Server, snapshot: ShardsSnapshot) -> ShardsError:
    stream, shard_set = snapshot.stream, snapshot.shard_set
    assert shard_set is not None
    key = "" if snapshot.registered is not None else f", and so is key {shards_key(stream).decode()!r}"
    more, recreate = len(snapshot.lost) - _SHOWN, command_on(stream, "shards", "--recreate", "--yes")
    names = ", ".join(map(repr, snapshot.lost[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
    return ShardsError(
        f"{len(snapshot.lost)} of the {shard_set.count} shards of stream {stream!r} at {server.address} are lost{key}: "
        f"{names}. Their entries and groups are not on the server any more. Restore them from a replica or a backup. "
        f"If that is not possible, run `{recreate}`: it creates the lost shards empty, and a "
        "query with a checkpoint then names or counts the lost entries (failOnDataLoss)"
    )


# -- replies ------------------------------------------------------------------------------------------------------


def _of_replies(server: Server, stream: str, flat: Reply, kind: Reply, length: Reply) -> ShardsSnapshot:
    is_plain = kind == b"stream"
    for reply in (flat, kind, *([length] if is_plain else [])):
        if is_not_permitted(reply):
            return ShardsSnapshot(stream, refusal=reply)
    plain = server.answer(("XLEN", stream), length) if is_plain else None
    try:
        return ShardsSnapshot(stream, ShardSet.read(stream, flat), plain)
    except ShardsError as error:
        if not is_plain:
            raise
        # No version writes the key beside a plain stream (both are WATCHed): another client did.
        _log.warning("stream %r at %s is read as a plain stream: %s", stream, server.address, error.message)
        return ShardsSnapshot(stream, plain=plain)


def _may_have_lost_its_key(server: Server, snapshots: Iterable[ShardsSnapshot]) -> list[str]:
    """Return streams without a key that do not exist or never had an entry: a query may have created such a stream
    while the key was lost."""
    unsure = [
        snapshot
        for snapshot in snapshots
        if snapshot.registered is None and snapshot.refusal is None and not snapshot.plain
    ]
    empty_streams = [snapshot.stream for snapshot in unsure if snapshot.plain is not None]
    described = [("XINFO", "STREAM", stream) for stream in empty_streams]
    replies = server.execute_all(described, is_no_such_key, is_not_permitted, is_wrong_type)
    used = {
        stream
        for stream, reply in zip(empty_streams, replies, strict=True)
        if isinstance(reply, ReplyError) or stream_in(reply).last != MIN_ID
    }
    return [snapshot.stream for snapshot in unsure if snapshot.stream not in used]


def _existing_keys(server: Server, names: Sequence[str], count_hidden: bool) -> list[str]:
    """Return the keys that exist. count_hidden: also keys that the user may not read."""
    kinds = zip(names, server.execute_all([("TYPE", name) for name in names], is_not_permitted), strict=True)
    return [name for name, kind in kinds if (count_hidden if is_not_permitted(kind) else kind != b"none")]


def _search_shards(server: Server, stream: str) -> dict[int, list[str]]:
    """Return all shards that exist, of any number; none if the user may not read them."""
    counts = set[int]()
    for portion in _portions(enumerate(possible_names(stream), 1)):
        parts = [(count, part) for count, names in portion for part in server.together(names, key=str)]
        replies = server.execute_all([("EXISTS", *part) for _, part in parts], is_not_permitted)
        found = zip(parts, replies, strict=True)
        counts.update(count for (count, _), reply in found if reply and not is_not_permitted(reply))
    return {count: _existing_keys(server, shards_of(stream, count), count_hidden=False) for count in sorted(counts)}


def _portions(names_of: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield the names by the number of shards in portions of about a megabyte: one or two for a usual name."""
    portion: list[tuple[int, list[str]]] = []
    size = 0
    for count, names in names_of:
        portion.append((count, names))
        size += count * len(names[0])
        if size > _PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


# -- create, find and delete them --------------------------------------------------------------------------------------


def ensure_shards(
    server: Server, stream: str, count: int, key_column: str | None = None, accepts_loss: bool = False
) -> ShardSet:
    """Create the shards of a stream, unless they exist, and return them. key_column: None for a reader, which does not
    know it; accepts_loss: lost shards are created again, empty, with a warning. May be run again.

    Raises ShardsError if the stream is plain or in another number of shards, if another column is the key, or if shards
    are lost; WrongKeyTypeError.
    """
    home = server.connection_for(shards_key(stream))
    while True:
        home.execute("WATCH", shards_key(stream), stream)
        try:
            snapshot = fetch_shards_snapshots(server, [stream])[stream]
            if snapshot.refusal is not None:
                raise server.error_of(snapshot.refusal, ("HGETALL", shards_key(stream)))
            shard_set = _plan(server, snapshot, count, key_column, accepts_loss)
        except (ShardsError, NotPermittedError):
            home.execute("UNWATCH")
            raise
        if snapshot.registered == shard_set:
            home.execute("UNWATCH")
            break
        if transact(home, [("HSET", shards_key(stream), *shard_set.to_fields())]) is not None:
            break
    return _create_missing(server, shard_set)


def restore_shard_sets(server: Server, streams: Sequence[str], accepts_loss: bool = False) -> dict[str, ShardSet]:
    """Return the shards of these streams, without plain streams. A lost key is written again.

    Empty if the user may not read the keys. Raises the errors of ensure_shards.
    """
    snapshots = fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)])
    sets: dict[str, ShardSet] = {}
    for stream, snapshot in snapshots.items():
        require_complete(server, snapshot, accepts_loss)
        shard_set = snapshot.shard_set
        if shard_set is not None and not snapshot.is_complete:
            shard_set = ensure_shards(server, stream, shard_set.count, None, accepts_loss)
        if shard_set is not None:
            sets[stream] = shard_set
    return sets


def fetch_shard_sets(server: Server, streams: Sequence[str]) -> dict[str, ShardSet]:
    """Return the same without changing anything. Raises ShardsError if shards are lost, or if there is a plain stream,
    too."""
    snapshots = fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)])
    for snapshot in snapshots.values():
        require_complete(server, snapshot)
    return {stream: snapshot.shard_set for stream, snapshot in snapshots.items() if snapshot.shard_set is not None}


def require_plain(server: Server, stream: str) -> None:
    """Raise ShardsError if the stream is in shards: no query would read rows that are written to the stream itself."""
    shard_set = fetch_shard_sets(server, [stream]).get(stream)
    if shard_set is not None:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, so no query would read rows that "
            f"are written to {stream!r} itself. Set options shards={shard_set.count} and "
            f"shardBy={shard_set.key_column or 'the key'}, or write to another name"
        )


def require_still_plain(server: Server, streams: Sequence[str]) -> None:
    """Raise ShardsError if one of these streams, which were plain or missing, is in shards now."""
    for snapshot in fetch_shards_snapshots(server, [stream for stream in streams if may_be_in_shards(stream)]).values():
        if snapshot.registered is not None:
            raise plain_and_shards(server, snapshot)


def _plan(server: Server, snapshot: ShardsSnapshot, count: int, key_column: str | None, accepts_loss: bool) -> ShardSet:
    """Return the set that is to exist. Raises ShardsError."""
    shard_set, stream = snapshot.shard_set, snapshot.stream
    require_complete(server, snapshot, accepts_loss)
    if snapshot.plain is not None:
        raise _plain(server, stream, snapshot.plain)
    if shard_set is None:
        return ShardSet(stream, count, key_column=key_column)
    if snapshot.registered is None:
        _log.warning(
            "key %r at %s was evicted or deleted; there are %d shards of %r, so the key is written again",
            shards_key(stream).decode(), server.address, shard_set.count, stream,
        )  # fmt: skip
    if shard_set.count != count:
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in {shard_set.count} shards, but option shards={count}. The "
            "shard of a key depends on this number, so it cannot change while the stream has rows. Set "
            f"shards={shard_set.count}, or write to another name. Or let the query read the stream to its end, stop "
            f"all writers and readers, and delete it (`{delete_shards_command(stream)}`) ({_PAGE})"
        )
    if key_column is not None and shard_set.key_column not in (None, key_column):
        raise ShardsError(
            f"stream {stream!r} at {server.address} is in shards by column {shard_set.key_column!r}, but option "
            f"shardBy={key_column!r}: rows of one key would be in two shards. Set shardBy={shard_set.key_column}, or "
            "write to another name"
        )
    if snapshot.lost:
        _log.warning(
            "shards of %r at %s are lost, and are created again, empty: %s",
            stream, server.address, ", ".join(snapshot.lost),
        )  # fmt: skip
    is_created = shard_set.is_created and not snapshot.lost
    return ShardSet(stream, count, key_column=shard_set.key_column or key_column, is_created=is_created)


def _create_missing(server: Server, shard_set: ShardSet) -> ShardSet:
    """Create the missing shards, empty. Return the set with all its shards."""
    if shard_set.is_created:
        return shard_set
    for name in shard_set.names:
        create: tuple[str, ...] = ("XGROUP", "CREATE", name, _MAKING, "0", "MKSTREAM")
        server.execute_all([create], is_busy_group)
        server.execute("XGROUP", "DESTROY", name, _MAKING)
    server.execute("HSET", shards_key(shard_set.stream), "made", 1)
    return ShardSet(shard_set.stream, shard_set.count, shard_set.rule, shard_set.key_column, is_created=True)


def _plain(server: Server, stream: str, length: int) -> ShardsError:
    if length:
        return ShardsError(
            f"stream {stream!r} at {server.address} is a plain stream with {length:,} entries, so it cannot be in "
            "shards. Write to another name. Or let the query read the stream to its end, stop the query, and delete "
            f"the stream (`redis-cli DEL {shell_words([stream])}`)"
        )
    return ShardsError(
        f"stream {stream!r} at {server.address} is a plain stream without entries: a query that waits for it has "
        f"created it. Stop the query, delete the stream (`redis-cli DEL {shell_words([stream])}`), and start the query "
        "with option shards, or after the writer"
    )


def retry_streams_of(server: Server, shard_set: ShardSet) -> dict[str, RetryStream]:
    """Return the streams in which entries of the shards wait for a retry, and those with returned entries."""
    shards = set(shard_set.names)
    names = [name.decode("utf-8", "replace") for name in list_streams(server)]
    parsed = {name: read_retry_stream(name) for name in names}
    return {name: retry for name, retry in parsed.items() if retry is not None and retry.stream in shards}


def delete_shards(
    server: Server,
    snapshot: ShardsSnapshot,
    shard_set: ShardSet,
    retry_streams: Iterable[tuple[str, RetryStream]],
    require_unneeded: Callable[[Server, str], None] | None = None,
) -> None:
    """Delete all shards with their entries and these retry streams, then the key, if it holds this number of shards.
    require_unneeded: raises the error of a stream that is to be kept; no entry is added to it before its deletion."""
    delays = {name: [delays_key(retry.stream, retry.group)] for name, retry in retry_streams}  # both are in one slot
    for name in [*shard_set.names, *delays]:
        home, deleted = server.connection_for(name), None
        while deleted is None:
            if require_unneeded is not None:
                home.execute("WATCH", name)
                require_unneeded(home, name)
            deleted = transact(home, [("DEL", name, *delays.get(name, ()))])
    # Last: if the deletion is interrupted, the key still shows which shards to delete.
    if snapshot.registered is not None and snapshot.registered.count == shard_set.count:
        server.execute("DEL", shards_key(shard_set.stream))
