"""A stream's payload (rdb.py): DUMP makes it, and RESTORE makes a stream of it.

DUMP writes for the oldest Redis that supports all contents of the stream: 7.0, 8.6 or 8.8. RESTORE reads payloads of
any Redis of 5.0 to 8.10.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import dropwhile, groupby
from typing import TYPE_CHECKING

from spark_streams.base.ids import U64_MAX, StreamId
from spark_streams.engine.persistence import rdb
from spark_streams.engine.store.entry_bytes import entry_wire, fields_of, fields_wire
from spark_streams.engine.store.group import StoredGroup, distance
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.pel import Consumer, PelRange
from spark_streams.engine.store.remembered_messages import MAX_DURATION, MAX_SIZE, Idempotence
from spark_streams.engine.store.stream import StoredStream

if TYPE_CHECKING:
    from spark_streams.base.export_lines import ExportedGroup, ExportedStream  # 20 ms of an engine's start

_VERSIONS = {rdb.STREAM_2: 10, rdb.STREAM_4: 13, rdb.STREAM_5: 14}  # format version that introduced a type of stream


def dump(stream: StoredStream, now: int, newest: bool = False) -> bytes:
    """Return the payload of a stream. now: Unix milliseconds.

    newest: use the newest format, which also holds when consumers were last active.
    """
    kind = rdb.STREAM_5 if newest else _kind_of(stream)
    out = bytearray([kind])
    _put_stream(out, stream, kind, now)
    out += _VERSIONS[kind].to_bytes(2, "little")
    out += rdb.crc64(bytes(out)).to_bytes(8, "little")
    return bytes(out)


def _kind_of(stream: StoredStream) -> int:
    """Return the oldest type that supports all contents of this stream."""
    if any(group.released.pending.count for group in stream.groups.values()):
        return rdb.STREAM_5
    return rdb.STREAM_4 if stream.idempotence.used else rdb.STREAM_2


def _put_stream(out: bytearray, stream: StoredStream, kind: int, now: int) -> None:
    rdb.put_length(out, len(stream.nodes))
    for node in stream.nodes:
        first, listpack = _packed_node(node)
        rdb.put_string(out, first.to_bytes(16, "big"))
        rdb.put_string(out, listpack)
    rdb.put_length(out, stream.length)
    for entry_id in (stream.last_id, stream.first_id, stream.max_deleted_id):
        rdb.put_id(out, entry_id)
    rdb.put_length(out, stream.entries_added)
    rdb.put_length(out, len(stream.groups))
    for name, group in stream.groups.items():
        rdb.put_string(out, name)
        _put_group(out, stream, group, kind)
    if kind >= rdb.STREAM_4:
        _put_idempotence(out, stream.idempotence, now)


def _put_group(out: bytearray, stream: StoredStream, group: StoredGroup, kind: int) -> None:
    rdb.put_id(out, group.last_id)
    rdb.put_length(out, U64_MAX if group.entries_read is None else group.entries_read)
    rdb.put_length(out, len(group.pending))
    for pel_range in group.pending.index.ranges:
        tail = bytearray(_time(pel_range.time))
        rdb.put_length(tail, pel_range.deliveries)
        for entry_id in pel_range.id_list(stream):
            out += entry_id.to_bytes(16, "big")
            out += tail
    rdb.put_length(out, len(group.consumers))
    for consumer in group.consumers.values():
        rdb.put_string(out, consumer.name)
        out += _time(consumer.seen)
        if kind >= rdb.STREAM_3:
            out += _time(consumer.active)
        _put_ids(out, stream, consumer)
    if kind >= rdb.STREAM_5:
        _put_ids(out, stream, group.released)


def _put_ids(out: bytearray, stream: StoredStream, owner: Consumer) -> None:
    """Write the pending entries of this consumer, or the released ones."""
    rdb.put_length(out, owner.pending.count)
    for pel_range in owner.pending.ranges:
        out += b"".join([entry_id.to_bytes(16, "big") for entry_id in pel_range.id_list(stream)])


def _put_idempotence(out: bytearray, memory: Idempotence, now: int) -> None:
    """Write the remembered idempotent adds that have not expired."""
    rdb.put_length(out, memory.duration)
    rdb.put_length(out, memory.max_size)
    latest = memory.latest_forgotten(now)
    alive = [
        (producer, remaining_messages)
        for producer, messages in sorted(memory.producers.items())
        if (remaining_messages := list(dropwhile(lambda item: item[1] >> 64 <= latest, messages.items())))
    ]
    rdb.put_length(out, len(alive))
    for producer, remaining_messages in alive:
        rdb.put_string(out, producer)
        rdb.put_length(out, len(remaining_messages))
        for message, entry_id in remaining_messages:
            rdb.put_string(out, message)
            rdb.put_id(out, entry_id)
    rdb.put_length(out, memory.added)
    rdb.put_length(out, memory.duplicates)


def _time(milliseconds: int) -> bytes:
    return milliseconds.to_bytes(8, "little", signed=True)


def _packed_node(node: Node) -> tuple[int, bytes]:
    """Return the ID from which the node's IDs are counted, and its live entries as a listpack."""
    entries = [
        (node.id_at(low + index), fields_of(wire))
        for low, high in node.spans(0, node.slots)
        for index, wire in enumerate(node.wires(low, high))
    ]
    first, pairs = entries[0]
    names = pairs[::2]
    elements: list[bytes | int] = [len(entries), 0, len(names), *names, 0]
    for entry_id, pairs in entries:
        ms = _difference(entry_id >> 64, first >> 64)
        seq = _difference(entry_id & U64_MAX, first & U64_MAX)
        if pairs[::2] == names:
            elements += [rdb.SAME_FIELDS, ms, seq, *pairs[1::2], len(names) + 3]
        else:
            elements += [0, ms, seq, len(pairs) // 2, *pairs, len(pairs) + 4]
    return first, rdb.pack(elements)


def _difference(number: int, base: int) -> int:
    """Return the difference of two 64-bit numbers as a signed 64-bit number; it may wrap around."""
    return ((number - base + (1 << 63)) & U64_MAX) - (1 << 63)


READ_VERSION = 14  # Redis 8.8
# Bytes of memory in addition to those of the text.
_PER_FIELD, _PER_ENTRY, _PER_PENDING = 10, 60, 300


class WrongVersionError(ValueError):
    """The payload has a newer version, or its checksum is wrong."""


class OtherTypeError(Exception):
    """The payload is valid, but its value is no stream."""


def load(
    payload: bytes, limits: NodeLimits, now: int, memory_limit: int = 1 << 62, element_limit: int = 1 << 62
) -> StoredStream:
    """Return the stream of a payload. It may take `memory_limit` bytes, and have `element_limit` listpack elements.

    Raises WrongVersionError, OtherTypeError, BadDataError, TooLargeError, TooManyElementsError.
    """
    if len(payload) < 10 or int.from_bytes(payload[-10:-8], "little") > READ_VERSION:
        raise WrongVersionError
    checksum = int.from_bytes(payload[-8:], "little")
    if checksum and checksum != rdb.crc64(payload[:-8]):
        raise WrongVersionError
    source = rdb.RdbSource(payload[:-10], memory_limit)
    try:
        kind = source.take(1)[0]
        if kind not in _STREAM_KINDS and kind <= max(_STREAM_KINDS):
            raise OtherTypeError
        if kind in _STREAM_KINDS and _most_elements(source) > element_limit:
            raise rdb.TooManyElementsError
        value = _stream(source, kind, limits, now) if kind in _STREAM_KINDS else None
    except (IndexError, ValueError, OverflowError) as problem:
        raise rdb.BadDataError(str(problem)) from None
    if value is None or source.position != len(source.data):
        raise rdb.BadDataError("not a stream")
    return value


_STREAM_KINDS = (rdb.STREAM, rdb.STREAM_2, rdb.STREAM_3, rdb.STREAM_4, rdb.STREAM_5)


def _most_elements(source: rdb.RdbSource) -> int:
    """Return how many elements the listpacks of all nodes have at most. The source stays where it is."""
    begin = source.position
    elements = 0
    for _ in range(source.count(18)):
        source.string()
        elements += source.skip_listpack()
    source.position = begin
    return elements


def _stream(source: rdb.RdbSource, kind: int, limits: NodeLimits, now: int) -> StoredStream:
    stream = StoredStream(limits)
    for _ in range(source.count(18)):
        first = source.string()
        if len(first) != 16:
            raise rdb.BadDataError("a node without an id")
        elements = source.listpack()
        for entry_id, pairs in _entries(int.from_bytes(first, "big"), elements):
            if entry_id <= stream.last_id:
                raise rdb.BadDataError("ids out of order")
            # Field names are stored once for all entries, but are part of each entry here.
            source.charge(sum(map(len, pairs)) + _PER_FIELD * len(pairs) + _PER_ENTRY)
            stream.append(entry_id, entry_wire(entry_id, fields_wire(pairs)), pairs)
    if source.length() != stream.length:
        raise rdb.BadDataError("a wrong count of entries")
    last = source.id()
    if last < stream.last_id:
        raise rdb.BadDataError("the last id is not the last")
    stream.last_id = last
    if kind != rdb.STREAM:
        source.id()  # the first ID follows from the entries
        stream.max_deleted_id = source.id()
        stream.entries_added = source.number()
        if stream.max_deleted_id > last or stream.entries_added < stream.length:
            raise rdb.BadDataError("counters that XSETID refuses")
    for _ in range(source.count(4)):
        name = source.string()
        if name in stream.groups:
            raise rdb.BadDataError("a group appears twice")
        stream.groups[name] = _group(source, kind, stream, now)
    if kind >= rdb.STREAM_4:
        _idempotence(source, stream.idempotence, now)
    return stream


def _idempotence(source: rdb.RdbSource, memory: Idempotence, now: int) -> None:
    """Read the remembered idempotent adds, without expired ones."""
    memory.duration, memory.max_size = source.length(), source.length()
    if not 1 <= memory.duration <= MAX_DURATION or not 1 <= memory.max_size <= MAX_SIZE:
        raise rdb.BadDataError("invalid limits of idempotent adds")
    latest = memory.latest_forgotten(now)
    for _ in range(source.count(2)):
        producer = source.string()
        messages: dict[bytes, int] = {}
        for _ in range(source.count(3)):
            message, entry_id = source.string(), source.id()
            if not producer or not message:
                raise rdb.BadDataError("a message without its name or its producer's")
            if entry_id >> 64 > latest:
                messages.setdefault(message, entry_id)
        if producer in memory.producers:
            raise rdb.BadDataError("a producer appears twice")
        if messages:
            memory.restore(producer, messages)
    memory.added, memory.duplicates = source.number(), source.number()


def _entries(first: int, elements: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the live entries of a node."""
    live, deleted, width = int(elements[0]), int(elements[1]), int(elements[2])
    names = elements[3 : 3 + width]
    index = 4 + width
    if live < 0 or deleted < 0 or width < 0 or len(elements) < index or elements[index - 1] != b"0":
        raise rdb.BadDataError("not a node of a stream")
    for _ in range(live + deleted):
        flags = int(elements[index])
        if flags & rdb.DELETED and flags & rdb.SAME_FIELDS:
            # Nothing is made of it.
            index += width + 4
            if int(elements[index - 1]) != width + 3:
                raise rdb.BadDataError("not an entry of a stream")
            continue
        ms = (first >> 64) + int(elements[index + 1]) & U64_MAX
        entry_id = ms << 64 | first + int(elements[index + 2]) & U64_MAX
        index += 3
        if flags & rdb.SAME_FIELDS:
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
            raise rdb.BadDataError("not an entry of a stream")
        index += 1
        live -= not flags & rdb.DELETED
        if not flags & rdb.DELETED:
            yield entry_id, pairs
    if index != len(elements) or live:
        raise rdb.BadDataError("a node has a wrong count of entries")


def _group(source: rdb.RdbSource, kind: int, stream: StoredStream, now: int) -> StoredGroup:
    group = StoredGroup(source.id(), None)
    if kind == rdb.STREAM:
        group.entries_read = distance(stream, group.last_id)
    else:
        read = source.length()
        group.entries_read = None if read >> 63 else read
    pending = {}
    for _ in range(source.count(25)):
        entry_id = source.raw_id()
        if entry_id in pending:
            raise rdb.BadDataError("an entry is pending twice")
        source.charge(_PER_PENDING)
        pending[entry_id] = (source.time(), source.number())
    owners: dict[int, Consumer] = {}
    for _ in range(source.count(10)):
        name = source.string()
        if name in group.consumers:
            raise rdb.BadDataError("a consumer appears twice")
        consumer = group.consumers[name] = Consumer(name, source.time())
        consumer.active = source.time() if kind >= rdb.STREAM_3 else consumer.seen
        _read_owned_ids(source, consumer, owners, pending)
    if kind >= rdb.STREAM_5:
        _read_owned_ids(source, group.released, owners, pending)
    if len(owners) != len(pending):
        raise rdb.BadDataError("a pending entry has no consumer")
    add_pending(group, stream, pending, owners)
    return group


def add_pending(
    group: StoredGroup, stream: StoredStream, pending: Mapping[int, tuple[int, int]], owners: Mapping[int, Consumer]
) -> None:
    """Add pending entries to a group that has none. pending: time and number of deliveries by ID; owners: consumers."""
    alike = groupby(sorted(pending), lambda entry_id: (id(owners[entry_id]), *pending[entry_id]))
    for (_, time, deliveries), ids in alike:
        _add_run(group, stream, list(ids), owners, time, deliveries)


def _read_owned_ids(
    source: rdb.RdbSource, owner: Consumer, owners: dict[int, Consumer], pending: Container[int]
) -> None:
    """Read the IDs of the pending entries of one consumer, or of the released ones."""
    for _ in range(source.count(16)):
        pending_id = source.raw_id()
        if pending_id not in pending or pending_id in owners:
            raise rdb.BadDataError("a consumer's pending entry is not pending in its group")
        owners[pending_id] = owner


def _add_run(
    group: StoredGroup, stream: StoredStream, ids: list[int], owners: Mapping[int, Consumer], time: int, deliveries: int
) -> None:
    pel_range = PelRange(ids[0], ids[-1], len(ids), owners[ids[0]], time, deliveries)
    if pel_range.count > 1 and pel_range.id_list(stream) != ids:
        pel_range.ids = ids
    group.pending.add(pel_range)


# -- of a stream that `rstream export --with-groups` has written -------------------------------------------------------


def payload_of(exported: ExportedStream) -> bytes:
    """Return the payload."""
    stream = StoredStream(NodeLimits())
    for parsed, fields in exported.entries:
        entry_id = _packed(parsed)
        stream.append(entry_id, entry_wire(entry_id, fields_wire(fields)), fields)
    stream.last_id, stream.max_deleted_id = _packed(exported.last), _packed(exported.deleted)
    stream.entries_added = exported.added
    stream.groups = {name: _exported_group(stream, group) for name, group in exported.groups.items()}
    return dump(stream, exported.time, newest=True)


def _exported_group(stream: StoredStream, exported: ExportedGroup) -> StoredGroup:
    group = StoredGroup(_packed(exported.position), exported.read)
    for name, (seen, active) in exported.consumers.items():
        consumer = group.consumers[name] = Consumer(name, seen)
        consumer.active = active
    pending, owners = {}, {}
    for entry_id, (owner, time, deliveries) in exported.pending.items():
        pending[_packed(entry_id)] = (time, deliveries)
        owners[_packed(entry_id)] = group.released if owner is None else group.consumers[owner]
    add_pending(group, stream, pending, owners)
    return group


def _packed(entry_id: StreamId) -> int:
    return entry_id.ms << 64 | entry_id.seq
