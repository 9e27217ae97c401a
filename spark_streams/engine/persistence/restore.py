"""Creates the stream of a payload (rdb.py) for RESTORE, from any Redis of 5.0 to 8.10."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import groupby

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.persistence.crc64 import crc64
from spark_streams.engine.persistence.listpack import BadDataError, TooManyElementsError
from spark_streams.engine.persistence.rdb import (
    DELETED,
    SAME_FIELDS,
    STREAM,
    STREAM_2,
    STREAM_3,
    STREAM_4,
    STREAM_5,
    Source,
)
from spark_streams.engine.store.entry import entry_wire, fields_wire
from spark_streams.engine.store.group import Group, distance
from spark_streams.engine.store.idempotence import MAX_DURATION, MAX_SIZE, Idempotence
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.pel_range import Consumer, PelRange
from spark_streams.engine.store.stream import Stream

READ_VERSION = 14  # Redis 8.8
# Bytes of memory in addition to those of the text.
_PER_FIELD, _PER_ENTRY, _PER_PENDING = 10, 60, 300


class WrongVersionError(ValueError):
    """The payload has a newer version, or its checksum is wrong."""


class OtherTypeError(Exception):
    """The payload is valid, but its value is no stream."""


def load(
    payload: bytes, limits: NodeLimits, now: int, memory_limit: int = 1 << 62, element_limit: int = 1 << 62
) -> Stream:
    """Return the stream of a payload. It may take `memory_limit` bytes, and have `element_limit` listpack elements.

    Raises WrongVersionError, OtherTypeError, BadDataError, TooLargeError, TooManyElementsError.
    """
    if len(payload) < 10 or int.from_bytes(payload[-10:-8], "little") > READ_VERSION:
        raise WrongVersionError
    checksum = int.from_bytes(payload[-8:], "little")
    if checksum and checksum != crc64(payload[:-8]):
        raise WrongVersionError
    source = Source(payload[:-10], memory_limit)
    try:
        kind = source.take(1)[0]
        if kind not in _STREAM_KINDS and kind <= max(_STREAM_KINDS):
            raise OtherTypeError
        if kind in _STREAM_KINDS and _most_elements(source) > element_limit:
            raise TooManyElementsError
        value = _stream(source, kind, limits, now) if kind in _STREAM_KINDS else None
    except (IndexError, ValueError, OverflowError) as problem:
        raise BadDataError(str(problem)) from None
    if value is None or source.position != len(source.data):
        raise BadDataError("not a stream")
    return value


_STREAM_KINDS = (STREAM, STREAM_2, STREAM_3, STREAM_4, STREAM_5)


def _most_elements(source: Source) -> int:
    """Return how many elements the listpacks of all nodes have at most. The source stays where it is."""
    begin = source.position
    elements = 0
    for _ in range(source.count(18)):
        source.string()
        elements += source.skip_listpack()
    source.position = begin
    return elements


def _stream(source: Source, kind: int, limits: NodeLimits, now: int) -> Stream:
    stream = Stream(limits)
    for _ in range(source.count(18)):
        first = source.string()
        if len(first) != 16:
            raise BadDataError("a node without an id")
        elements = source.listpack()
        for entry_id, pairs in _entries(int.from_bytes(first, "big"), elements):
            if entry_id <= stream.last_id:
                raise BadDataError("ids out of order")
            # Field names are stored once for all entries, but are part of each entry here.
            source.charge(sum(map(len, pairs)) + _PER_FIELD * len(pairs) + _PER_ENTRY)
            stream.append(entry_id, entry_wire(entry_id, fields_wire(pairs)), pairs)
    if source.length() != stream.length:
        raise BadDataError("a wrong count of entries")
    last = source.id()
    if last < stream.last_id:
        raise BadDataError("the last id is not the last")
    stream.last_id = last
    if kind != STREAM:
        source.id()  # the first ID follows from the entries
        stream.max_deleted_id = source.id()
        stream.entries_added = source.number()
        if stream.max_deleted_id > last or stream.entries_added < stream.length:
            raise BadDataError("counters that XSETID refuses")
    for _ in range(source.count(4)):
        name = source.string()
        if name in stream.groups:
            raise BadDataError("a group appears twice")
        stream.groups[name] = _group(source, kind, stream, now)
    if kind >= STREAM_4:
        _idempotence(source, stream.idempotence, now)
    return stream


def _idempotence(source: Source, memory: Idempotence, now: int) -> None:
    """Read the remembered idempotent adds, without expired ones."""
    memory.duration, memory.max_size = source.length(), source.length()
    if not 1 <= memory.duration <= MAX_DURATION or not 1 <= memory.max_size <= MAX_SIZE:
        raise BadDataError("invalid limits of idempotent adds")
    latest = memory.latest_forgotten(now)
    for _ in range(source.count(2)):
        producer = source.string()
        messages: dict[bytes, int] = {}
        for _ in range(source.count(3)):
            message, entry_id = source.string(), source.id()
            if not producer or not message:
                raise BadDataError("a message without its name or its producer's")
            if entry_id >> 64 > latest:
                messages.setdefault(message, entry_id)
        if producer in memory.producers:
            raise BadDataError("a producer appears twice")
        if messages:
            memory.restore(producer, messages)
    memory.added, memory.duplicates = source.number(), source.number()


def _entries(first: int, elements: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the live entries of a node."""
    live, deleted, width = int(elements[0]), int(elements[1]), int(elements[2])
    names = elements[3 : 3 + width]
    index = 4 + width
    if live < 0 or deleted < 0 or width < 0 or len(elements) < index or elements[index - 1] != b"0":
        raise BadDataError("not a node of a stream")
    for _ in range(live + deleted):
        flags = int(elements[index])
        if flags & DELETED and flags & SAME_FIELDS:
            # Nothing is made of it.
            index += width + 4
            if int(elements[index - 1]) != width + 3:
                raise BadDataError("not an entry of a stream")
            continue
        ms = (first >> 64) + int(elements[index + 1]) & U64_MAX
        entry_id = ms << 64 | first + int(elements[index + 2]) & U64_MAX
        index += 3
        if flags & SAME_FIELDS:
            values = elements[index : index + width]
            pairs = [word for pair in zip(names, values, strict=True) for word in pair]
            index += width
            count = width + 3
        else:
            field_count = int(elements[index])
            pairs = elements[index + 1 : index + 1 + 2 * field_count]
            index += 1 + 2 * field_count
            count = 2 * field_count + 4
        if int(elements[index]) != count:
            raise BadDataError("not an entry of a stream")
        index += 1
        live -= not flags & DELETED
        if not flags & DELETED:
            yield entry_id, pairs
    if index != len(elements) or live:
        raise BadDataError("a node has a wrong count of entries")


def _group(source: Source, kind: int, stream: Stream, now: int) -> Group:
    group = Group(source.id(), None)
    if kind == STREAM:
        group.entries_read = distance(stream, group.last_id)
    else:
        read = source.length()
        group.entries_read = None if read >> 63 else read
    pending = {}
    for _ in range(source.count(25)):
        entry_id = source.raw_id()
        if entry_id in pending:
            raise BadDataError("an entry is pending twice")
        source.charge(_PER_PENDING)
        pending[entry_id] = (source.time(), source.number())
    owners: dict[int, Consumer] = {}
    for _ in range(source.count(10)):
        name = source.string()
        if name in group.consumers:
            raise BadDataError("a consumer appears twice")
        consumer = group.consumers[name] = Consumer(name, source.time())
        consumer.active = source.time() if kind >= STREAM_3 else consumer.seen
        _read_owned_ids(source, consumer, owners, pending)
    if kind >= STREAM_5:
        _read_owned_ids(source, group.released, owners, pending)
    if len(owners) != len(pending):
        raise BadDataError("a pending entry has no consumer")
    add_pending(group, stream, pending, owners)
    return group


def add_pending(
    group: Group, stream: Stream, pending: Mapping[int, tuple[int, int]], owners: Mapping[int, Consumer]
) -> None:
    """Add pending entries to a group that has none. pending: time and number of deliveries by ID; owners: consumers."""
    alike = groupby(sorted(pending), lambda entry_id: (id(owners[entry_id]), *pending[entry_id]))
    for (_, time, deliveries), ids in alike:
        _add_run(group, stream, list(ids), owners, time, deliveries)


def _read_owned_ids(source: Source, owner: Consumer, owners: dict[int, Consumer], pending: Container[int]) -> None:
    """Read the IDs of the pending entries of one consumer, or of the released ones."""
    for _ in range(source.count(16)):
        pending_id = source.raw_id()
        if pending_id not in pending or pending_id in owners:
            raise BadDataError("a consumer's pending entry is not pending in its group")
        owners[pending_id] = owner


def _add_run(
    group: Group, stream: Stream, ids: list[int], owners: Mapping[int, Consumer], time: int, deliveries: int
) -> None:
    pel_range = PelRange(ids[0], ids[-1], len(ids), owners[ids[0]], time, deliveries)
    if pel_range.count > 1 and pel_range.id_list(stream) != ids:
        pel_range.ids = ids
    group.pending.add(pel_range)
