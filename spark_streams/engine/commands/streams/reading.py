"""XREAD and XREADGROUP: reading what is new, with and without a group, and waiting for it.

A command that waits is tried again as a whole when one of its keys has changed, as since Redis 7.2: a group that has
gone in the meantime is then an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain

from spark_streams.engine.client import Client, Waiter
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.arguments import entry_id
from spark_streams.engine.commands.streams.pending import MAX_DELIVERIES
from spark_streams.engine.commands.streams.read_options import ReadOptions, Room, parse
from spark_streams.engine.commands.streams.streams import Entries
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import (
    NIL_ARRAY,
    Array,
    CommandError,
    PairedMap,
    Pieces,
    Reply,
    bulk,
    encode,
)
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.keyspace import Database, wrong_type
from spark_streams.engine.store.node_list import Slice
from spark_streams.engine.store.pel_range import Consumer, PelRange
from spark_streams.engine.store.stream import Stream

_NEVER = 1 << 63  # later than any time


def _wait(
    engine: Engine, client: Client, options: ReadOptions, attempt: Callable[[], Reply | None],
    find_retry_time: Callable[[], int] | None = None, needs_key: bool = False,
) -> Reply | None:  # fmt: skip
    """The reply of a first attempt; else block, or answer nil where blocking is not asked for or not possible."""
    reply = attempt()
    if reply is not None:
        return reply
    if options.block is None or engine.in_transaction:
        return NIL_ARRAY
    deadline = engine.now + options.block if options.block else None
    engine.block(Waiter(client, client.db, options.keys, deadline, attempt, NIL_ARRAY, find_retry_time, needs_key))
    return None


@command("xread", -4, "readonly blocking movablekeys", (0, 0, 0))
def xread(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """XREAD [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] STREAMS key … id|$|+ …"""
    options = parse(args, grouped=False)
    db = client.db
    wanted = [(key, _read_after(db.stream(key), text)) for key, text in zip(options.keys, options.ids, strict=True)]

    def attempt() -> Reply | None:
        replies: list[tuple[Reply, Reply]] = []
        room = Room(options, client.resp)
        for key, last in wanted:
            if room.full:
                break
            stream = db.get(key)
            if type(stream) is not Stream or not stream.length:
                continue
            after = stream.top_id() - 1 if last is None else last
            if after == entryid.HIGHEST or stream.last_id <= after:
                continue
            room.begin(key)
            slices, total = stream.slices(after + 1, entryid.HIGHEST, room.count)
            if total:
                replies.append((bulk(key), Entries(*room.cut(slices, total))))
            room.end()
        if replies and any(type(db.get(key)) not in (Stream, type(None)) for key in options.keys):
            raise wrong_type()
        return PairedMap(replies) if replies else None

    return _wait(engine, client, options, attempt)


def _read_after(stream: Stream | None, text: bytes) -> int | None:
    """After which id to read; None: whatever is the last entry by then."""
    if text == b"$":
        return stream.last_id if stream is not None else 0
    if text == b"+":
        return None
    if text == b">":
        raise CommandError(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
        )
    return entry_id(text)


@command("xreadgroup", -7, "write effect blocking movablekeys", (0, 0, 0))
def xreadgroup(engine: Engine, client: Client, args: list[bytes]) -> Reply | None:
    """XREADGROUP GROUP group consumer [options] STREAMS key … id|> …

    Options: COUNT n, MAXCOUNT n, MAXSIZE bytes, BLOCK ms, CLAIM min-idle, NOACK.
    """
    options = parse(args, grouped=True)
    db, name = client.db, options.group
    wanted = [(key, _read_from(db, key, name, text)) for key, text in zip(options.keys, options.ids, strict=True)]

    only_new = options.claim is None and [last for _, last in wanted] == [None]

    def attempt() -> Reply | None:
        if only_new and client.waiter is not None and _has_read_all(db, options.keys[0], name):
            return None
        return _read_groups(engine, client, options, wanted)

    def find_retry_time() -> int:
        assert options.claim is not None
        times = [_oldest(*_group(db, key, name), _NEVER) for key in options.keys]
        return options.claim + min([time for time in times if time is not None], default=engine.now)

    # Redis forgets CLAIM as soon as it has come to a key whose history is asked for.
    claims = options.claim is not None and all(last is None for _, last in wanted)
    return _wait(engine, client, options, attempt, find_retry_time if claims else None, needs_key=True)


def _read_from(db: Database, key: bytes, name: bytes, text: bytes) -> int | None:
    """After which id of the history to read; None: what is new."""
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
    return None if last == entryid.HIGHEST else last


def _has_read_all(db: Database, key: bytes, name: bytes) -> bool:
    """Whether a group has nothing new: the short answer for the many who wait where one was served."""
    stream = db.values.get(key)
    group = stream.groups.get(name) if type(stream) is Stream else None
    return type(stream) is Stream and group is not None and group.last_id >= stream.last_id


def _group(db: Database, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = db.stream(key)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise CommandError(
            b"NOGROUP No such key '%b' or consumer group '%b' in XREADGROUP with GROUP option" % (key, name)
        )
    return stream, group


def _read_groups(
    engine: Engine, client: Client, options: ReadOptions, wanted: Sequence[tuple[bytes, int | None]]
) -> Reply | None:
    db, name, claim = client.db, options.group, options.claim
    for key in options.keys:
        _group(db, key, name)
    replies: list[tuple[Reply, Reply]] = []
    room = Room(options, client.resp)
    for key, last in wanted:
        if room.full:
            break
        stream, group = _group(db, key, name)
        if options.consumer not in group.consumers:
            db.changes += 1
            if engine.journal is not None:
                engine.journal.consumer(db, key, name, options.consumer)
        consumer = group.consumer(options.consumer, engine.now)
        reply: Reply | None
        if last is not None:
            claim = None
            room.begin(key)
            reply, changed = _read_history(engine, client.resp, stream, group, consumer, last, room)
            if engine.journal is not None and changed:
                engine.journal.redelivered(db, key, name, group, changed, stream)
        else:
            reply = _read_new(engine, db, key, options, stream, group, consumer, claim, room)
        if reply is not None:
            replies.append((bulk(key), reply))
            room.end()
    return PairedMap(replies) if replies else None


def _read_new(
    engine: Engine, db: Database, key: bytes, options: ReadOptions, stream: Stream, group: Group, consumer: Consumer,
    claim: int | None, room: Room,
) -> Reply | None:  # fmt: skip
    """What the group has not seen yet, behind what may be claimed; None when there is neither."""
    claimed: list[bytes] = []
    fresh = group.last_id < stream.last_id and stream.top_id() > group.last_id
    if claim is not None and _oldest(stream, group, engine.now - claim) is not None:
        room.begin(key)
        claimed = _claim(engine, db, key, options.group, stream, group, consumer, engine.now - claim, room)
    elif fresh:
        room.begin(key)
    else:
        return None
    slices: Sequence[Slice] = ()
    total = 0
    if fresh and room.count != 0:
        slices, total = stream.slices(group.last_id + 1, entryid.HIGHEST, room.count)
        slices, total = room.cut(slices, total, len(_NEW) if claim is not None else 0)
    if total:
        owner = None if options.no_ack else consumer
        group.deliver(slices, owner, engine.now, stream)
        if engine.journal is not None:
            engine.journal.delivered(db, key, options.group, group, slices, owner, engine.now)
        if owner is not None:
            consumer.active = engine.now
    if total or claimed:
        db.touch_groups(key)
    if claim is None:
        return Entries(slices, total)
    new = [b"*4" + node.wire(at, at + 1)[2:] + _NEW for node, low, high in slices for at in range(low, high)]
    return Pieces(len(claimed) + total, claimed + new)


# Claiming: idle time and earlier deliveries stand behind each entry

_NEW = b":0\r\n:0\r\n"


def _live(stream: Stream, pel_range: PelRange, count: int | None) -> Iterator[tuple[int, bytes]]:
    """Those entries of a range that still exist, at most `count`: id and reply bytes."""
    if pel_range.ids is None:
        for node, low, high in stream.slices(pel_range.first, pel_range.last, count)[0]:
            for at in range(low, high):
                yield node.id_at(at), node.wire(at, at + 1)
        return
    for pending_id in pel_range.ids:
        entry = stream.find(pending_id)
        if entry is not None:
            yield pending_id, entry.wire()


def _oldest(stream: Stream, group: Group, latest: int) -> int | None:
    """When the longest idle of the pending entries that exist was delivered, if not after `latest`."""
    with closing(group.pending.due(latest)) as pel_ranges:
        return next(
            (pel_range.time for pel_range in pel_ranges if next(_live(stream, pel_range, 1), None) is not None), None
        )


def _claim(
    engine: Engine, db: Database, key: bytes, name: bytes, stream: Stream, group: Group, consumer: Consumer,
    latest: int, room: Room,
) -> list[bytes]:  # fmt: skip
    """Take over what is pending since `latest` or longer, the longest first, as far as there is room."""
    pending, now = group.pending, engine.now
    items: list[bytes] = []
    taken: dict[int, list[int]] = {}
    with closing(pending.due(latest)) as pel_ranges:
        for pel_range in pel_ranges:
            tail = b":%d\r\n:%d\r\n" % (now - pel_range.time, pel_range.deliveries)
            deliveries = min(pel_range.deliveries + 1, MAX_DELIVERIES)
            ids: list[int] = []
            left_over = False
            for pending_id, wire in _live(stream, pel_range, None if room.count is None else room.count + 1):
                if not room.take(len(wire) + len(tail)):
                    left_over = True
                    break
                items.append(b"*4%b%b" % (wire[2:], tail))
                ids.append(pending_id)
            taken.setdefault(deliveries, []).extend(ids)
            for part in _parts(stream, group, pel_range, ids):
                pending.move(part, consumer, now, deliveries)
            if left_over or room.count == 0:
                break
    if items:
        consumer.active = now
        if engine.journal is not None:
            engine.journal.claimed(db, key, name, group, consumer, taken, now)
    return items


def _parts(stream: Stream, group: Group, pel_range: PelRange, ids: Sequence[int]) -> list[PelRange]:
    """The ranges of exactly these entries of a range: one where they are its first ones, with no gap."""
    if not ids:
        return []
    if len(ids) == pel_range.count:
        return [pel_range]
    if pel_range.ids is None and stream.slot(ids[-1]) - stream.slot(pel_range.first) + 1 == len(ids):
        return group.pending.between(pel_range.first, ids[-1], stream)
    return list(chain.from_iterable([group.pending.between(pending_id, pending_id, stream) for pending_id in ids]))


# History: what is pending for the consumer itself


def _read_history(
    engine: Engine, resp: int, stream: Stream, group: Group, consumer: Consumer, after: int, room: Room
) -> tuple[Reply, list[PelRange]]:
    """What is pending for this consumer above an id; each entry that still exists counts one more delivery.

    The second are the ranges that were counted up.
    """
    items: list[Reply] = []
    changed: list[PelRange] = []
    start = after + 1
    while room.count != 0:
        at = consumer.pending.find_index(start)
        if at == len(consumer.pending.ranges):
            break
        pel_range = consumer.pending.ranges[at]
        ids = pel_range.id_list(stream, start, room.count)
        start = ids[-1] + 1
        more = True
        for part in group.pending.between(ids[0], ids[-1], stream):
            more = more and _redeliver(engine, resp, stream, group, part, room, items, changed)
        if not more:
            break
    return Array(items), changed


def _redeliver(
    engine: Engine, resp: int, stream: Stream, group: Group, pel_range: PelRange, room: Room, items: list[Reply],
    changed: list[PelRange],
) -> bool:  # fmt: skip
    """The entries of one range, delivered once more; a deleted entry is an id with nil and stays as it was.

    False when they did not all fit in.
    """
    slices, total = stream.slices(pel_range.first, pel_range.last)
    deliveries = min(pel_range.deliveries + 1, MAX_DELIVERIES)
    if total == pel_range.count and not room.sized:
        room.took(total)
        items += [piece.node.wire(i, i + 1) for piece in slices for i in range(piece.low, piece.high)]
        changed.append(group.pending.move(pel_range, pel_range.consumer, engine.now, deliveries))
        return True
    for pending_id in pel_range.id_list(stream):
        entry = stream.find(pending_id)
        if entry is None:
            gone = Array([bulk(entryid.text(pending_id)), NIL_ARRAY])
            if not room.take(len(encode(gone, resp))):
                return False
            items.append(gone)
            continue
        if not room.take(len(entry.wire())):
            return False
        (single,) = group.pending.between(pending_id, pending_id, stream)
        changed.append(group.pending.move(single, single.consumer, engine.now, deliveries))
        items.append(entry.wire())
    return True
