"""XGROUP and XACK; XINFO STREAM [FULL] | GROUPS | CONSUMERS | HELP."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import BAD_ID, any_entry_id, entry_id, help_lines, integer_of
from spark_streams.engine.commands.streams.stream_entries import Entries
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import NIL, OK, Array, CommandError, Map, Reply, bulk, integer, simple
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.keyspace import existing
from spark_streams.engine.store.pel import Consumer, PelRange, PelRangeIndex
from spark_streams.engine.store.stream import StoredStream


def _options(args: list[bytes], creating: bool) -> tuple[bool, int | None]:
    make, entries_read = False, None
    index = 5
    while index < len(args):
        option = args[index].lower()
        if creating and option == b"mkstream":
            make = True
            index += 1
        elif option == b"entriesread" and index + 1 < len(args):
            value = integer_of(args[index + 1])
            if value < -1:
                raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
            entries_read = None if value == -1 else value
            index += 2
        else:
            raise CommandError(
                b"ERR unknown subcommand or wrong number of arguments for '%b'. Try XGROUP HELP." % args[1][:128]
            )
    return make, entries_read


def _stream(client: Client, args: list[bytes]) -> StoredStream:
    stream = client.db.stream(args[2])
    if stream is None:
        raise CommandError(
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
            "MKSTREAM option to create an empty stream automatically."
        )
    return stream


def _group(client: Client, args: list[bytes]) -> tuple[StoredStream, StoredGroup]:
    stream = _stream(client, args)
    group = stream.groups.get(args[3])
    if group is None:
        raise CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (args[3], args[2]))
    return stream, group


def _capped(entries_read: int | None, stream: StoredStream | None, args: list[bytes]) -> int | None:
    """Cap entries_read at the entries ever added.

    The journal gets the capped value, because older Redis does not cap.
    """
    added = stream.entries_added if stream is not None else 0
    if entries_read is None or entries_read <= added:
        return entries_read
    for index in range(5, len(args) - 1):
        if args[index].lower() == b"entriesread":
            args[index + 1] = b"%d" % added
    return added


@command("xgroup|create", -5, "write denyoom", (2, 2, 1))
def create(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD n]"""
    make, entries_read = _options(args, creating=True)
    stream = client.db.stream(args[2]) if make else _stream(client, args)
    last = (stream.last_id if stream is not None else 0) if args[4] == b"$" else entry_id(args[4])
    if stream is None:
        stream = StoredStream(engine.node_limits)
        client.db.set(args[2], stream, changes=0)
    elif args[3] in stream.groups:
        raise CommandError("BUSYGROUP Consumer Group name already exists")
    stream.groups[args[3]] = StoredGroup(last, _capped(entries_read, stream, args))
    client.db.touch_groups(args[2])
    return OK


@command("xgroup|setid", -5, "write", (2, 2, 1))
def setid(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP SETID key group id|$ [ENTRIESREAD n]"""
    entries_read = _options(args, creating=False)[1]
    stream, group = _group(client, args)
    group.last_id = stream.last_id if args[4] == b"$" else any_entry_id(args[4])
    group.entries_read = _capped(entries_read, stream, args)
    client.db.touch_groups(args[2])
    return OK


@command("xgroup|destroy", 4, "write", (2, 2, 1))
def destroy(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP DESTROY key group"""
    if _stream(client, args).groups.pop(args[3], None) is None:
        return integer(0)
    client.db.touch_groups(args[2])
    return integer(1)


@command("xgroup|createconsumer", 5, "write denyoom", (2, 2, 1))
def createconsumer(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP CREATECONSUMER key group consumer"""
    group = _group(client, args)[1]
    if args[4] in group.consumers:
        return integer(0)
    group.consumer(args[4], engine.now)
    client.db.touch_groups(args[2])
    return integer(1)


@command("xgroup|delconsumer", 5, "write", (2, 2, 1))
def delconsumer(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP DELCONSUMER key group consumer"""
    group = _group(client, args)[1]
    existed = args[4] in group.consumers
    dropped = group.drop_consumer(args[4])
    if existed:
        client.db.touch_groups(args[2])
    return integer(dropped)


_GROUP_HELP = """
CREATE <key> <groupname> <id|$> [option]
    Create a new consumer group. Options are:
    * MKSTREAM
      Create the empty stream if it does not exist.
    * ENTRIESREAD entries_read
      Set the group's entries_read counter (internal use).
CREATECONSUMER <key> <groupname> <consumer>
    Create a new consumer in the specified group.
DELCONSUMER <key> <groupname> <consumer>
    Remove the specified consumer.
DESTROY <key> <groupname>
    Remove the specified group.
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
    Set the current group ID and entries_read counter.
"""


@command("xgroup|help", 2, "loading stale")
def xgroup_help(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XGROUP HELP"""
    return Array([simple(line) for line in help_lines("XGROUP", _GROUP_HELP)])


@command("xack", -4, "write fast", (1, 1, 1))
def xack(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XACK key group id …"""
    stream = client.db.stream(args[1])
    group = stream.groups.get(args[2]) if stream is not None else None
    if stream is None or group is None:
        return integer(0)
    try:
        dropped = group.acknowledge(args[3:], stream)
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None
    if dropped:
        client.db.touch_groups(args[1], dropped)
    return integer(dropped)


def _map(*pairs: tuple[str, Reply]) -> Map:
    return Map([(bulk(name.encode()), value) for name, value in pairs])


def _id(entry_id: int) -> bytes:
    return bulk(entryid.text(entry_id))


def _number(value: int | None) -> Reply:
    return NIL if value is None else integer(value)


def _head(stream: StoredStream) -> list[tuple[str, Reply]]:
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


def _full(stream: StoredStream, count: int | None) -> Reply:
    return _map(
        *_head(stream),
        ("entries", Entries(*stream.slices(0, entryid.HIGHEST, count))),
        ("groups", Array([_full_group(stream, name, group, count) for name, group in sorted(stream.groups.items())])),
    )


def _full_group(stream: StoredStream, name: bytes, group: StoredGroup, count: int | None) -> Reply:
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


def _full_consumer(stream: StoredStream, consumer: Consumer, count: int | None) -> Reply:
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


def _first(index: PelRangeIndex, stream: StoredStream, count: int | None) -> Iterable[tuple[PelRange, int]]:
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
