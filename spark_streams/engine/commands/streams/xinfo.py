"""XINFO STREAM [FULL] | GROUPS | CONSUMERS | HELP."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import help_lines, integer_of
from spark_streams.engine.commands.streams.streams import Entries
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import NIL, Array, CommandError, Map, Reply, bulk, integer, simple
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.keyspace import existing
from spark_streams.engine.store.pel_range import Consumer, PelRange, PelRangeIndex
from spark_streams.engine.store.stream import Stream


def _map(*pairs: tuple[str, Reply]) -> Map:
    return Map([(bulk(name.encode()), value) for name, value in pairs])


def _id(entry_id: int) -> bytes:
    return bulk(entryid.text(entry_id))


def _number(value: int | None) -> Reply:
    return NIL if value is None else integer(value)


def _head(stream: Stream) -> list[tuple[str, Reply]]:
    memory = stream.idempotence
    return [
        ("length", integer(stream.length)),
        ("radix-tree-keys", integer(len(stream.nodes))),
        ("radix-tree-nodes", integer(len(stream.nodes) + 1)),
        ("last-generated-id", _id(stream.last_id)),
        ("max-deleted-entry-id", _id(stream.max_deleted_id)),
        ("entries-added", integer(stream.entries_added)),
        ("recorded-first-entry-id", _id(stream.first_id)),
        ("idmp-duration", integer(memory.duration)),
        ("idmp-maxsize", integer(memory.max_size)),
        ("pids-tracked", integer(len(memory.producers))),
        ("iids-tracked", integer(memory.tracked())),
        ("iids-added", integer(memory.added)),
        ("iids-duplicates", integer(memory.duplicates)),
    ]


@command("xinfo|stream", -3, "readonly", (2, 2, 1))
def xinfo_stream(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]]"""
    stream = existing(client.db.stream(args[2]))
    stream.idempotence.forget_old(engine.now)
    if len(args) > 3:
        return _full(stream, _full_count(args))
    first, _ = stream.slices(0, entryid.HIGHEST, 1)
    last = stream.entries_backwards(0, entryid.HIGHEST, 1)
    return _map(
        *_head(stream),
        ("groups", integer(len(stream.groups))),
        ("first-entry", first[0].wire() if first else NIL),
        ("last-entry", last[0] if last else NIL),
    )


def _full_count(args: list[bytes]) -> int | None:
    count = 10
    if args[3].lower() != b"full" or len(args) not in (4, 6) or (len(args) == 6 and args[4].lower() != b"count"):
        raise CommandError(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try XINFO HELP." % args[1][:128]
        )
    if len(args) == 6:
        count = integer_of(args[5])
        if count < 0:
            count = 10
    return count or None


def _full(stream: Stream, count: int | None) -> Reply:
    return _map(
        *_head(stream),
        ("entries", Entries(*stream.slices(0, entryid.HIGHEST, count))),
        ("groups", Array([_full_group(stream, name, group, count) for name, group in sorted(stream.groups.items())])),
    )


def _full_group(stream: Stream, name: bytes, group: Group, count: int | None) -> Reply:
    pending = [
        Array([_id(pending_id), bulk(pel_range.consumer.name), integer(pel_range.time), integer(pel_range.deliveries)])
        for pel_range, pending_id in _first(group.pending.index, stream, count)
    ]
    consumers = [_full_consumer(stream, consumer, count) for _, consumer in sorted(group.consumers.items())]
    return _map(
        ("name", bulk(name)),
        ("last-delivered-id", _id(group.last_id)),
        ("entries-read", _number(group.entries_read)),
        ("lag", _number(group.lag(stream))),
        ("pel-count", integer(len(group.pending))),
        ("nacked-count", integer(group.released.pending.count)),
        ("pending", Array(pending)),
        ("consumers", Array(consumers)),
    )


def _full_consumer(stream: Stream, consumer: Consumer, count: int | None) -> Reply:
    pending = [
        Array([_id(pending_id), integer(pel_range.time), integer(pel_range.deliveries)])
        for pel_range, pending_id in _first(consumer.pending, stream, count)
    ]
    return _map(
        ("name", bulk(consumer.name)),
        ("seen-time", integer(consumer.seen)),
        ("active-time", integer(consumer.active)),
        ("pel-count", integer(consumer.pending.count)),
        ("pending", Array(pending)),
    )


def _first(index: PelRangeIndex, stream: Stream, count: int | None) -> Iterable[tuple[PelRange, int]]:
    remaining = index.count if count is None else count
    for pel_range in index.ranges:
        if remaining <= 0:
            return
        ids = pel_range.id_list(stream, 0, remaining)
        remaining -= len(ids)
        yield from ((pel_range, entry_id) for entry_id in ids)


@command("xinfo|groups", 3, "readonly", (2, 2, 1))
def xinfo_groups(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XINFO GROUPS key"""
    stream = existing(client.db.stream(args[2]))
    return Array(
        [
            _map(
                ("name", bulk(name)),
                ("consumers", integer(len(group.consumers))),
                ("pending", integer(len(group.pending))),
                ("last-delivered-id", _id(group.last_id)),
                ("entries-read", _number(group.entries_read)),
                ("lag", _number(group.lag(stream))),
            )
            for name, group in sorted(stream.groups.items())
        ]
    )


@command("xinfo|consumers", 4, "readonly", (2, 2, 1))
def xinfo_consumers(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XINFO CONSUMERS key group"""
    group = existing(client.db.stream(args[2])).groups.get(args[3])
    if group is None:
        raise CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (args[3], args[2]))
    return Array(
        [
            _map(
                ("name", bulk(name)),
                ("pending", integer(consumer.pending.count)),
                ("idle", integer(max(engine.now - consumer.seen, 0))),
                ("inactive", integer(max(engine.now - consumer.active, 0) if consumer.active >= 0 else -1)),
            )
            for name, consumer in sorted(group.consumers.items())
        ]
    )


_HELP = """
CONSUMERS <key> <groupname>
    Show consumers of <groupname>.
GROUPS <key>
    Show the stream consumer groups.
STREAM <key> [FULL [COUNT <count>]
    Show information about the stream.
"""


@command("xinfo|help", 2, "loading stale")
def xinfo_help(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XINFO HELP"""
    return Array([simple(line) for line in help_lines("XINFO", _HELP)])
