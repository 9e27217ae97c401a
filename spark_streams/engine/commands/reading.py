"""XREAD and XREADGROUP: reading what is new, with and without a group, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_streams.engine import entryid
from spark_streams.engine.blocking import Waiter
from spark_streams.engine.client import Client
from spark_streams.engine.commands.arguments import entry_id, integer_of, syntax_error
from spark_streams.engine.commands.streams import Entries
from spark_streams.engine.commands.table import command
from spark_streams.engine.core import Engine
from spark_streams.engine.group import Consumer, Group
from spark_streams.engine.keyspace import Database
from spark_streams.engine.pending import Run
from spark_streams.engine.replies import (
    NIL_ARRAY,
    Array,
    CommandError,
    PairedMap,
    Reply,
    bulk,
)
from spark_streams.engine.stream import Slice, Stream

# A blocked reader without COUNT is not flooded when it wakes (XREAD_BLOCKED_DEFAULT_COUNT).
BLOCKED_COUNT = 1000


@dataclass
class _Options:
    keys: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    count: int | None = None
    block: int | None = None
    group: bytes | None = None
    consumer: bytes = b""
    no_ack: bool = False


def _parse(args: list[bytes], grouped: bool) -> _Options:
    options = _Options()
    at = 1
    while at < len(args):
        option, more = args[at].lower(), len(args) - at - 1
        if option == b"block" and more:
            options.block = integer_of(args[at + 1], "ERR timeout is not an integer or out of range")
            if options.block < 0:
                raise CommandError("ERR timeout is negative")
            at += 1
        elif option == b"count" and more:
            options.count = max(integer_of(args[at + 1]), 0) or None
            at += 1
        elif option == b"streams" and more:
            rest = args[at + 1 :]
            if len(rest) % 2:
                # Redis 7.0 says XREAD and $ of XREADGROUP, too.
                raise CommandError(
                    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
                )
            half = len(rest) // 2
            options.keys, options.ids = rest[:half], rest[half:]
            break
        elif option == b"group" and more >= 2:
            if not grouped:
                raise CommandError("ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.")
            options.group, options.consumer = args[at + 1], args[at + 2]
            at += 2
        elif option == b"noack":
            if not grouped:
                raise CommandError("ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.")
            options.no_ack = True
        else:
            raise syntax_error()
        at += 1
    if not options.keys:
        raise syntax_error()
    if grouped and options.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    return options


def _wait(
    engine: Engine, client: Client, options: _Options, attempt: Callable[[int | None], Reply | None]
) -> Reply | None:
    """The reply of a first attempt; else block, or answer nil where blocking is not asked for or not possible."""
    reply = attempt(options.count)
    if reply is not None:
        return reply
    if options.block is None or engine.in_transaction:
        return NIL_ARRAY
    deadline = engine.now + options.block if options.block else None
    count = options.count or BLOCKED_COUNT
    engine.waiters.add(Waiter(client, client.db, options.keys, deadline, lambda: attempt(count), NIL_ARRAY))
    return None


@command("xread", -4, "readonly blocking movablekeys", (0, 0, 0))
def xread(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """XREAD [COUNT n] [BLOCK ms] STREAMS key … id|$|+ …"""
    options = _parse(args, grouped=False)
    db = client.db
    after = [_read_after(db.stream(key), text) for key, text in zip(options.keys, options.ids, strict=True)]

    def attempt(count: int | None) -> Reply | None:
        found: list[tuple[Reply, Reply]] = []
        for key, last in zip(options.keys, after, strict=True):
            stream = db.get(key)
            if type(stream) is Stream and stream.length and last < entryid.HIGHEST:
                slices, total = stream.slices(last + 1, entryid.HIGHEST, count)
                if total:
                    found.append((bulk(key), Entries(slices, total)))
        return PairedMap(found) if found else None

    return _wait(engine, client, options, attempt)


def _read_after(stream: Stream | None, text: bytes) -> int:
    if text == b"$":
        return stream.last_id if stream is not None else 0
    if text == b"+":
        return (
            stream.top_id() - 1 if stream is not None and stream.length else stream.last_id if stream is not None else 0
        )
    if text == b">":
        raise CommandError(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
        )
    return entry_id(text)


@command("xreadgroup", -7, "write effect blocking movablekeys", (0, 0, 0))
def xreadgroup(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """XREADGROUP GROUP group consumer [COUNT n] [BLOCK ms] [NOACK] STREAMS key … id|> …"""
    options = _parse(args, grouped=True)
    db, name = client.db, options.group or b""
    after: list[int | None] = []
    for key, text in zip(options.keys, options.ids, strict=True):
        _group(db, key, name)
        for sign in (b"$", b"+"):
            if text == sign:
                raise CommandError(
                    f"ERR The {sign.decode()} ID is meaningless in the context of XREADGROUP: you want to read the "
                    "history of this consumer by specifying a proper ID, or use the > ID to get new messages. The "
                    f"{sign.decode()} ID would just return an empty result set."
                )
        last = None if text == b">" else entry_id(text)
        # The highest id is how Redis itself spells `>`.
        after.append(None if last == entryid.HIGHEST else last)

    def attempt(count: int | None) -> Reply | None:
        found: list[tuple[Reply, Reply]] = []
        for key in options.keys:
            _group(db, key, name)
        for key, last in zip(options.keys, after, strict=True):
            stream, group = _group(db, key, name)
            if engine.journal is not None and options.consumer not in group.consumers:
                engine.journal.consumer(db, key, name, options.consumer)
            consumer = group.consumer(options.consumer, engine.now)
            if last is None:
                slices, total = _read_new(engine, stream, group, None if options.no_ack else consumer, count)
                if total:
                    if engine.journal is not None:
                        owner = None if options.no_ack else consumer
                        engine.journal.delivered(db, key, name, group, slices, owner, engine.now)
                    consumer.active = engine.now
                    db.touch_groups(key)
                    found.append((bulk(key), Entries(slices, total)))
            else:
                reply, changed = _read_history(engine, stream, group, consumer, last, count)
                if engine.journal is not None and changed:
                    engine.journal.redelivered(db, key, name, group, changed, stream)
                found.append((bulk(key), reply))
        return PairedMap(found) if found else None

    return _wait(engine, client, options, attempt)


def _group(db: Database, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = db.stream(key)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise CommandError(
            b"NOGROUP No such key '%b' or consumer group '%b' in XREADGROUP with GROUP option" % (key, name)
        )
    return stream, group


def _read_new(
    engine: Engine, stream: Stream, group: Group, consumer: Consumer | None, count: int | None
) -> tuple[list[Slice], int]:
    if group.last_id >= stream.last_id:
        return [], 0
    slices, total = stream.slices(group.last_id + 1, entryid.HIGHEST, count)
    if total:
        group.deliver(slices, consumer, engine.now, stream)
    return slices, total


def _read_history(
    engine: Engine, stream: Stream, group: Group, consumer: Consumer, after: int, count: int | None
) -> tuple[Reply, list[Run]]:
    """What is pending for this consumer above an id; each entry that still exists counts one more delivery.

    The second are the runs that were counted up.
    """
    items: list[Reply] = []
    changed: list[Run] = []
    left = count if count is not None else consumer.pending.count
    start = after + 1
    while left > 0:
        at = consumer.pending.at(start)
        if at == len(consumer.pending.runs):
            break
        run = consumer.pending.runs[at]
        ids = run.id_list(stream, start, left)
        left -= len(ids)
        start = ids[-1] + 1
        for one in group.pending.between(ids[0], ids[-1], stream):
            items += _redeliver(engine, stream, group, one, changed)
    return Array(items), changed


def _redeliver(engine: Engine, stream: Stream, group: Group, run: Run, changed: list[Run]) -> Sequence[Reply]:
    """The entries of one run, delivered once more; a deleted entry is an id with nil and stays as it was."""
    slices, total = stream.slices(run.first, run.last)
    if total == run.count:
        run.time = engine.now
        run.deliveries += 1
        changed.append(run)
        return [piece.node.wire(i, i + 1) for piece in slices for i in range(piece.low, piece.high)]
    items: list[Reply] = []
    for one in run.id_list(stream):
        entry = stream.find(one)
        if entry is None:
            items.append(Array([bulk(entryid.text(one)), NIL_ARRAY]))
            continue
        (single,) = group.pending.between(one, one, stream)
        single.time = engine.now
        single.deliveries += 1
        changed.append(single)
        items.append(entry.wire())
    return items
