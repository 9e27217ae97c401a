"""XREAD and XREADGROUP: reading new entries, with and without a group, and waiting for them.

A blocked command is attempted again as a whole when one of its keys has changed, as since Redis 7.2. If its group was
deleted meanwhile, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain

from spark_streams.engine.client import Client, Waiter
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import entry_id
from spark_streams.engine.commands.streams.pending_entries import MAX_DELIVERIES
from spark_streams.engine.commands.streams.read_options import ReadArguments, ReplyQuota, parse
from spark_streams.engine.commands.streams.stream_entries import Entries
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import (
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
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.keyspace import Database, wrong_type
from spark_streams.engine.store.node_list import Slice
from spark_streams.engine.store.pel import Consumer, PelRange
from spark_streams.engine.store.stream import PER_RANGE, StoredStream

_NEVER = 1 << 63  # later than any time


def _wait(
    engine: Engine, client: Client, options: ReadArguments, attempt: Callable[[], Reply | None],
    find_retry_time: Callable[[], int] | None = None, needs_key: bool = False,
) -> Reply | None:  # fmt: skip
    """Return the reply of a first attempt; else block, or return nil if blocking is not requested or not possible."""
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
    start_ids = [(key, _read_after(db.stream(key), text)) for key, text in zip(options.keys, options.ids, strict=True)]

    def attempt() -> Reply | None:
        replies: list[tuple[Reply, Reply]] = []
        quota = ReplyQuota(options, client.resp)
        for key, last in start_ids:
            if quota.full:
                break
            stream = db.get(key)
            if type(stream) is not StoredStream or not stream.length:
                continue
            after = stream.top_id() - 1 if last is None else last
            if after == entryid.HIGHEST or stream.last_id <= after:
                continue
            quota.begin_stream(key)
            slices, total = stream.slices(after + 1, entryid.HIGHEST, quota.count)
            if total:
                replies.append((bulk(key), Entries(*quota.cut(slices, total))))
            quota.end_stream()
        if replies and any(type(db.get(key)) not in (StoredStream, type(None)) for key in options.keys):
            raise wrong_type()
        return PairedMap(replies) if replies else None

    return _wait(engine, client, options, attempt)


def _read_after(stream: StoredStream | None, text: bytes) -> int | None:
    """Return the ID after which to read; None: only the last entry at the time of the read."""
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

    The options are those of read_options.
    """
    options = parse(args, grouped=True)
    db, name = client.db, options.group
    start_ids = [(key, _read_from(db, key, name, text)) for key, text in zip(options.keys, options.ids, strict=True)]

    only_new = options.claim is None and [last for _, last in start_ids] == [None]

    def attempt() -> Reply | None:
        if only_new and client.waiter is not None and _has_read_all(db, options.keys[0], name):
            return None
        return _read_groups(engine, client, options, start_ids)

    def find_retry_time() -> int:
        assert options.claim is not None
        times = [_oldest_delivery(*_group(db, key, name), _NEVER) for key in options.keys]
        return options.claim + min([time for time in times if time is not None], default=engine.now)

    # Redis drops CLAIM as soon as it reaches a key whose history is requested.
    claims = options.claim is not None and all(last is None for _, last in start_ids)
    return _wait(engine, client, options, attempt, find_retry_time if claims else None, needs_key=True)


def _read_from(db: Database, key: bytes, name: bytes, text: bytes) -> int | None:
    """Return the ID of the history after which to read; None: new entries."""
    _group(db, key, name)
    for sign in (b"$", b"+"):
        if text == sign:
            raise CommandError(
                f"ERR The {sign.decode()} ID is meaningless in the context of XREADGROUP: you want to read the "
                "history of this consumer by specifying a proper ID, or use the > ID to get new messages. The "
                f"{sign.decode()} ID would just return an empty result set."
            )
    last = None if text == b">" else entry_id(text)
    # Redis itself represents `>` by the highest ID.
    return None if last == entryid.HIGHEST else last


def _has_read_all(db: Database, key: bytes, name: bytes) -> bool:
    """Whether a group has no new entry: a fast check for many waiting clients when another one was served."""
    stream = db.values.get(key)
    group = stream.groups.get(name) if type(stream) is StoredStream else None
    return type(stream) is StoredStream and group is not None and group.last_id >= stream.last_id


def _group(db: Database, key: bytes, name: bytes) -> tuple[StoredStream, StoredGroup]:
    stream = db.stream(key)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise CommandError(
            b"NOGROUP No such key '%b' or consumer group '%b' in XREADGROUP with GROUP option" % (key, name)
        )
    return stream, group


def _read_groups(
    engine: Engine, client: Client, options: ReadArguments, start_ids: Sequence[tuple[bytes, int | None]]
) -> Reply | None:
    db, name, claim = client.db, options.group, options.claim
    for key in options.keys:
        _group(db, key, name)
    replies: list[tuple[Reply, Reply]] = []
    quota = ReplyQuota(options, client.resp)
    for key, last in start_ids:
        if quota.full:
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
            quota.begin_stream(key)
            reply, changed = _read_history(engine, client.resp, stream, group, consumer, last, quota)
            if engine.journal is not None and changed:
                engine.journal.redelivered(db, key, name, group, changed, stream)
        else:
            reply = _read_new(engine, db, key, options, stream, group, consumer, claim, quota)
        if reply is not None:
            replies.append((bulk(key), reply))
            quota.end_stream()
    return PairedMap(replies) if replies else None


def _read_new(
    engine: Engine, db: Database, key: bytes, options: ReadArguments, stream: StoredStream, group: StoredGroup,
    consumer: Consumer, claim: int | None, quota: ReplyQuota,
) -> Reply | None:  # fmt: skip
    """Return new entries of the group, after claimed ones; None if there are neither."""
    claimed: list[bytes] = []
    fresh = group.last_id < stream.last_id and stream.top_id() > group.last_id
    if claim is not None and _oldest_delivery(stream, group, engine.now - claim) is not None:
        quota.begin_stream(key)
        claimed = _claim(engine, db, key, options.group, stream, group, consumer, engine.now - claim, quota)
    elif fresh:
        quota.begin_stream(key)
    else:
        return None
    slices: Sequence[Slice] = ()
    total = 0
    if fresh and quota.count != 0:
        slices, total = stream.slices(group.last_id + 1, entryid.HIGHEST, quota.count)
        slices, total = quota.cut(slices, total, len(_NEW) if claim is not None else 0)
    if total:
        owner = consumer if options.makes_pending else None
        if owner is not None:
            engine.memory.grow(PER_RANGE * len(slices))
        group.deliver(slices, owner, engine.now, stream)
        if engine.journal is not None:
            engine.journal.delivered(db, key, options.group, group, slices, owner, engine.now)
        if owner is not None:
            consumer.active = engine.now
    if total or claimed:
        db.changes += 1
    if claim is None:
        return Entries(slices, total)
    new = [b"*4" + node.wire(index, index + 1)[2:] + _NEW for node, low, high in slices for index in range(low, high)]
    return Pieces(len(claimed) + total, claimed + new)


# Claiming: each entry is followed by its idle time and its earlier deliveries

_NEW = b":0\r\n:0\r\n"


def _existing_entries(stream: StoredStream, pel_range: PelRange, count: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of a range that exist, at most `count`: ID and reply bytes."""
    if pel_range.ids is None:
        for node, low, high in stream.slices(pel_range.first, pel_range.last, count)[0]:
            for index in range(low, high):
                yield node.id_at(index), node.wire(index, index + 1)
        return
    for pending_id in pel_range.ids:
        entry = stream.find(pending_id)
        if entry is not None:
            yield pending_id, entry.wire()


def _oldest_delivery(stream: StoredStream, group: StoredGroup, latest: int) -> int | None:
    """Return the delivery time of the existing pending entry that is idle longest; None if it is after `latest`."""
    with closing(group.pending.due(latest)) as pel_ranges:
        return next(
            (
                pel_range.time
                for pel_range in pel_ranges
                if next(_existing_entries(stream, pel_range, 1), None) is not None
            ),
            None,
        )


def _claim(
    engine: Engine, db: Database, key: bytes, name: bytes, stream: StoredStream, group: StoredGroup, consumer: Consumer,
    latest: int, quota: ReplyQuota,
) -> list[bytes]:  # fmt: skip
    """Claim entries that are pending since `latest` or longer, the longest first, within the quota."""
    pending, now = group.pending, engine.now
    items: list[bytes] = []
    taken: dict[int, list[int]] = {}
    with closing(pending.due(latest)) as pel_ranges:
        for pel_range in pel_ranges:
            tail = b":%d\r\n:%d\r\n" % (now - pel_range.time, pel_range.deliveries)
            deliveries = min(pel_range.deliveries + 1, MAX_DELIVERIES)
            ids: list[int] = []
            quota_reached = False
            for pending_id, wire in _existing_entries(
                stream, pel_range, None if quota.count is None else quota.count + 1
            ):
                if not quota.take_entry(len(wire) + len(tail)):
                    quota_reached = True
                    break
                items.append(b"*4%b%b" % (wire[2:], tail))
                ids.append(pending_id)
            taken.setdefault(deliveries, []).extend(ids)
            for part in _split_off(stream, group, pel_range, ids):
                pending.move(part, consumer, now, deliveries)
            if quota_reached or quota.count == 0:
                break
    if items:
        consumer.active = now
        if engine.journal is not None:
            engine.journal.claimed(db, key, name, group, consumer, taken, now)
    return items


def _split_off(stream: StoredStream, group: StoredGroup, pel_range: PelRange, ids: Sequence[int]) -> list[PelRange]:
    """Return ranges of exactly these entries of a range: one range if they are its first entries without a gap."""
    if not ids:
        return []
    if len(ids) == pel_range.count:
        return [pel_range]
    if pel_range.ids is None and stream.slot(ids[-1]) - stream.slot(pel_range.first) + 1 == len(ids):
        return group.pending.between(pel_range.first, ids[-1], stream)
    return list(chain.from_iterable([group.pending.between(pending_id, pending_id, stream) for pending_id in ids]))


# History: pending entries of the consumer itself


def _read_history(
    engine: Engine,
    resp: int,
    stream: StoredStream,
    group: StoredGroup,
    consumer: Consumer,
    after: int,
    quota: ReplyQuota,
) -> tuple[Reply, list[PelRange]]:
    """Return the consumer's pending entries above an ID, and the ranges whose delivery count has changed.

    Each entry that exists counts one more delivery.
    """
    items: list[Reply] = []
    changed: list[PelRange] = []
    start = after + 1
    while quota.count != 0:
        index = consumer.pending.find_index(start)
        if index == len(consumer.pending.ranges):
            break
        pel_range = consumer.pending.ranges[index]
        ids = pel_range.id_list(stream, start, quota.count)
        start = ids[-1] + 1
        more = True
        for part in group.pending.between(ids[0], ids[-1], stream):
            more = more and _redeliver(engine, resp, stream, group, part, quota, items, changed)
        if not more:
            break
    return Array(items), changed


def _redeliver(
    engine: Engine, resp: int, stream: StoredStream, group: StoredGroup, pel_range: PelRange, quota: ReplyQuota,
    items: list[Reply], changed: list[PelRange],
) -> bool:  # fmt: skip
    """Deliver the entries of one range again. A deleted entry is returned as an ID with nil and does not change.

    False: not all of them fitted.
    """
    slices, total = stream.slices(pel_range.first, pel_range.last)
    deliveries = min(pel_range.deliveries + 1, MAX_DELIVERIES)
    if total == pel_range.count and not quota.sized:
        quota.count_entries(total)
        items += [piece.node.wire(i, i + 1) for piece in slices for i in range(piece.low, piece.high)]
        changed.append(group.pending.move(pel_range, pel_range.consumer, engine.now, deliveries))
        return True
    for pending_id in pel_range.id_list(stream):
        entry = stream.find(pending_id)
        if entry is None:
            deleted_entry = Array([bulk(entryid.text(pending_id)), NIL_ARRAY])
            if not quota.take_entry(len(encode(deleted_entry, resp))):
                return False
            items.append(deleted_entry)
            continue
        if not quota.take_entry(len(entry.wire())):
            return False
        (single,) = group.pending.between(pending_id, pending_id, stream)
        changed.append(group.pending.move(single, single.consumer, engine.now, deliveries))
        items.append(entry.wire())
    return True
