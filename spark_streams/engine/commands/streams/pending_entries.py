"""XPENDING, XCLAIM, XAUTOCLAIM, XNACK: pending entries, claiming them, and releasing them for the next reader."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import (
    BAD_ID,
    entry_id,
    integer_of,
    interval_end,
    interval_start,
    syntax_error,
)
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import (
    HEADERS,
    NIL,
    NIL_ARRAY,
    Array,
    CommandError,
    Pieces,
    Reply,
    bulk,
    bulks,
    integer,
)
from spark_streams.engine.store import entryid
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.pel import Consumer, PelRangeIndex
from spark_streams.engine.store.stream import StoredStream

MAX_DELIVERIES = 2**63 - 1
_MAX_CLAIM = MAX_DELIVERIES // 16


def existing_group(client: Client, args: list[bytes]) -> tuple[StoredStream, StoredGroup]:
    """Return the stream and group that args[1] and args[2] name. Raises NOGROUP."""
    stream = client.db.stream(args[1])
    group = stream.groups.get(args[2]) if stream is not None else None
    if stream is None or group is None:
        raise CommandError(b"NOGROUP No such key '%b' or consumer group '%b'" % (args[1], args[2]))
    return stream, group


@command("xpending", -3, "readonly", (1, 1, 1))
def xpending(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XPENDING key group [[IDLE ms] start end count [consumer]]"""
    if len(args) != 3 and not 6 <= len(args) <= 9:
        raise syntax_error()
    if len(args) == 3:
        return _summary(*existing_group(client, args))
    position, min_idle = 3, 0
    if args[3].lower() == b"idle":
        min_idle = integer_of(args[4])
        if len(args) < 8:
            raise syntax_error()
        position = 5
    count = max(integer_of(args[position + 2]), 0)
    start, end = interval_start(args[position]), interval_end(args[position + 1])
    stream, group = existing_group(client, args)
    index = group.pending.index
    if len(args) > position + 3:
        consumer = group.consumers.get(args[position + 3])
        if consumer is None:
            return Array([])
        index = consumer.pending
    return _extended(index, stream, group, start, end, count, min_idle, engine.now)


def _summary(stream: StoredStream, group: StoredGroup) -> Reply:
    pel_ranges = group.pending.index.ranges
    if not pel_ranges:
        return Array([integer(0), NIL, NIL, NIL_ARRAY])
    consumers = [
        Array(bulks([name, b"%d" % consumer.pending.count]))
        for name, consumer in sorted(group.consumers.items())
        if consumer.pending.count
    ]
    first, last = entryid.text(pel_ranges[0].first), entryid.text(pel_ranges[-1].last)
    return Array([integer(len(group.pending)), bulk(first), bulk(last), Array(consumers)])


def _extended(
    index: PelRangeIndex,
    stream: StoredStream,
    group: StoredGroup,
    start: int,
    end: int,
    count: int,
    min_idle: int,
    now: int,
) -> Reply:
    """Return ID, consumer, idle milliseconds and deliveries of each entry.

    Within a range only the ID differs, so the replies of a range are joined, not built one by one. Entries that XNACK
    has released have no consumer and an idle time of -1.
    """
    pieces: list[bytes] = []
    total = 0
    for pel_range in index.since(start):
        if pel_range.first > end or total >= count:
            break
        owned = pel_range.consumer is not group.released
        idle = max(now - pel_range.time, 0) if owned else -1
        if min_idle and owned and idle < min_idle:
            continue
        texts = pel_range.id_texts(stream, start, count - total)
        if pel_range.last > end:
            texts = texts[: bisect_right(pel_range.id_list(stream, start, count - total), end)]
        if not texts:
            continue
        total += len(texts)
        name = pel_range.consumer.name
        tail = b"\r\n$%d\r\n%b\r\n:%d\r\n:%d\r\n" % (len(name), name, idle, pel_range.deliveries)
        if len(texts[0]) == len(texts[-1]) == len(min(texts, key=len)) == len(max(texts, key=len)):
            head = b"*4\r\n%b\r\n" % HEADERS[len(texts[0])]
            pieces += [head, (tail + head).join(texts), tail]
        else:
            pieces += [b"*4\r\n%b\r\n%b%b" % (HEADERS[len(text)], text, tail) for text in texts]
    return Pieces(total, pieces)


class _Claim:
    """Options of XCLAIM."""

    deliveries: int = -1
    force: bool = False
    just_id: bool = False
    last_id: int = 0

    def __init__(self, min_idle: int, time: int) -> None:
        self.min_idle = min_idle
        self.time = time


@command("xclaim", -6, "write fast effect", (1, 1, 1))
def xclaim(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XCLAIM key group consumer min-idle id … [IDLE ms] [TIME unix-ms] [RETRYCOUNT n] [FORCE] [JUSTID] [LASTID id]"""
    stream, group = existing_group(client, args)
    min_idle = max(integer_of(args[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
    ids = _leading_ids(args[5:])
    claim = _claim_options(args, 5 + len(ids), min_idle, engine.now)
    moved = claim.last_id > group.last_id
    group.last_id = max(group.last_id, claim.last_id)
    consumer = _consumer(engine, client, group, args)
    items: list[Reply] = []
    taken: dict[int, list[int]] = {}
    dropped: list[int] = []
    for claimed_id in ids:
        pel_range = group.pending.get(claimed_id, stream)
        entry = stream.find(claimed_id)
        if entry is None:
            if pel_range is not None:
                group.pending.take(claimed_id, stream)
                dropped.append(claimed_id)
            continue
        if pel_range is None and not claim.force:
            continue
        owned = pel_range is not None and pel_range.consumer is not group.released
        if pel_range is not None and owned and claim.min_idle and engine.now - pel_range.time < claim.min_idle:
            continue
        deliveries = pel_range.deliveries if pel_range is not None else 1
        if claim.deliveries >= 0:
            deliveries = claim.deliveries
        elif not claim.just_id:
            deliveries = min(deliveries + 1, MAX_DELIVERIES)
        group.pending.take(claimed_id, stream)
        group.pending.put(claimed_id, consumer, claim.time, deliveries, stream)
        taken.setdefault(deliveries, []).append(claimed_id)
        consumer.active = engine.now
        items.append(bulk(entryid.text(claimed_id)) if claim.just_id else entry.wire())
    changes = len(items) + len(dropped) or int(moved)
    if changes:
        client.db.touch_groups(args[1], changes)
    if engine.journal is not None:
        engine.journal.claimed(client.db, args[1], args[2], group, consumer, taken, claim.time, dropped, moved)
    return Array(items)


def _consumer(engine: Engine, client: Client, group: StoredGroup, args: list[bytes]) -> Consumer:
    """Return the consumer that claims; create it on first use."""
    if args[3] not in group.consumers:
        client.db.changes += 1
        if engine.journal is not None:
            engine.journal.consumer(client.db, args[1], args[2], args[3])
    return group.consumer(args[3], engine.now)


def _leading_ids(words: list[bytes]) -> list[int]:
    """Return the IDs up to the first word that is no ID: there the options begin."""
    ids: list[int] = []
    for word in words:
        try:
            ids.append(entryid.parse(word))
        except entryid.BadEntryIdError:
            break
    return ids


def _claim_options(args: list[bytes], position: int, min_idle: int, now: int) -> _Claim:
    claim = _Claim(min_idle, -1)
    while position < len(args):
        option, more = args[position].lower(), len(args) - position - 1
        if option == b"force":
            claim.force = True
        elif option == b"justid":
            claim.just_id = True
        elif option == b"idle" and more:
            claim.time = now - integer_of(args[position + 1], "ERR Invalid IDLE option argument for XCLAIM")
            position += 1
        elif option == b"time" and more:
            claim.time = integer_of(args[position + 1], "ERR Invalid TIME option argument for XCLAIM")
            position += 1
        elif option == b"retrycount" and more:
            claim.deliveries = integer_of(args[position + 1], "ERR Invalid RETRYCOUNT option argument for XCLAIM")
            position += 1
        elif option == b"lastid" and more:
            claim.last_id = entry_id(args[position + 1])
            position += 1
        else:
            raise CommandError(b"ERR Unrecognized XCLAIM option '%b'" % args[position])
        position += 1
    if not 0 <= claim.time <= now:
        claim.time = now
    return claim


@command("xautoclaim", -6, "write fast effect", (1, 1, 1))
def xautoclaim(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]"""
    min_idle = max(integer_of(args[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    start = interval_start(args[5])
    count, just_id = 100, False
    position = 6
    while position < len(args):
        option = args[position].lower()
        if option == b"count" and position + 1 < len(args):
            count = integer_of(args[position + 1], "ERR COUNT must be > 0")
            if not 1 <= count <= _MAX_CLAIM:
                raise CommandError("ERR COUNT must be > 0")
            position += 1
        elif option == b"justid":
            just_id = True
        else:
            raise syntax_error()
        position += 1
    stream, group = existing_group(client, args)
    consumer = _consumer(engine, client, group, args)
    claimable, deleted, cursor = _pick(stream, group, start, count, min_idle, engine.now)
    items: list[Reply] = []
    taken: dict[int, list[int]] = {}
    for claimed_id, deliveries in claimable:
        counted = deliveries if just_id else min(deliveries + 1, MAX_DELIVERIES)
        _take_over(group, stream, claimed_id, consumer, engine.now, counted)
        taken.setdefault(counted, []).append(claimed_id)
        entry = stream.find(claimed_id)
        assert entry is not None  # _pick returns existing entries
        items.append(bulk(entryid.text(claimed_id)) if just_id else entry.wire())
    for claimed_id in deleted:
        group.pending.take(claimed_id, stream)
    if claimable or deleted:
        client.db.touch_groups(args[1], len(claimable) + len(deleted))
        if engine.journal is not None:
            engine.journal.claimed(client.db, args[1], args[2], group, consumer, taken, engine.now, deleted)
    return Array([bulk(entryid.text(cursor)), Array(items), Array(bulks(map(entryid.text, deleted)))])


def _take_over(
    group: StoredGroup, stream: StoredStream, claimed_id: int, consumer: Consumer, now: int, deliveries: int
) -> None:
    group.pending.take(claimed_id, stream)
    group.pending.put(claimed_id, consumer, now, deliveries, stream)
    consumer.active = now


def _pick(
    stream: StoredStream, group: StoredGroup, start: int, count: int, min_idle: int, now: int
) -> tuple[list[tuple[int, int]], list[int], int]:
    """Return IDs to claim with their deliveries, deleted IDs, and the cursor; examines ten IDs per ID to claim."""
    index = group.pending.index
    attempts = count * 10
    claimable: list[tuple[int, int]] = []
    deleted: list[int] = []
    for pel_range in index.since(start):
        due = not min_idle or pel_range.consumer is group.released or now - pel_range.time >= min_idle
        for pending_id in pel_range.id_list(stream, start, attempts + 1):
            if not attempts or not count:
                return claimable, deleted, pending_id
            attempts -= 1
            if stream.find(pending_id) is None:
                deleted.append(pending_id)
                count -= 1
            elif due:
                claimable.append((pending_id, pel_range.deliveries))
                count -= 1
    return claimable, deleted, 0


_MODES: dict[bytes, Callable[[int], int]] = {
    b"silent": lambda deliveries: max(deliveries - 1, 0),
    b"fail": lambda deliveries: deliveries,
    b"fatal": lambda deliveries: MAX_DELIVERIES,
}


@command("xnack", -7, "write fast", (1, 1, 1))
def xnack(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XNACK key group SILENT|FAIL|FATAL IDS count id … [RETRYCOUNT n] [FORCE]"""
    stream, group = existing_group(client, args)
    new_deliveries = _MODES.get(args[3].lower())
    if new_deliveries is None:
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    texts, retries, force = _options(args)
    if retries is not None:
        retry_count = retries
        new_deliveries = lambda deliveries: retry_count  # noqa: E731 - one of three functions of the same form
    try:
        ranges = group.ranges(texts, stream)
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None
    released = sum(_release(stream, group, *range_, new_deliveries, force) for range_ in ranges)
    if released:
        client.db.touch_groups(args[1], released)
    return integer(released)


def _options(args: list[bytes]) -> tuple[list[bytes], int | None, bool]:
    texts: list[bytes] = []
    retries: int | None = None
    force = False
    index = 4
    while index < len(args):
        option, more = args[index].lower(), len(args) - index - 1
        if option == b"ids" and more:
            count = integer_of(args[index + 1], "ERR numids must be a positive integer")
            if not 1 <= count < 1 << 31:
                raise CommandError("ERR numids must be a positive integer")
            if count > len(args) - index - 2:
                raise CommandError("ERR number of IDs doesn't match numids")
            texts = args[index + 2 : index + 2 + count]
            index += 1 + count
        elif option == b"force":
            force = True
        elif option == b"retrycount" and more:
            retries = integer_of(args[index + 1])
            if retries < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            index += 1
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%b'" % args[index])
        index += 1
    if not texts:
        raise CommandError("ERR syntax error, expected IDS keyword")
    return texts, retries, force


def _release(
    stream: StoredStream,
    group: StoredGroup,
    first: int,
    last: int,
    count: int,
    new_deliveries: Callable[[int], int],
    force: bool,
) -> int:
    pel_ranges = group.take(first, last, count, stream)
    if pel_ranges is None:
        # Only a single ID may be not pending: releasing, unlike acknowledging, keeps IDs in the list.
        if not force or stream.find(first) is None:
            return 0
        group.pending.put(first, group.released, 0, new_deliveries(0), stream)
        return 1
    for pel_range in pel_ranges:
        group.pending.move(pel_range, group.released, 0, new_deliveries(pel_range.deliveries))
    return count
