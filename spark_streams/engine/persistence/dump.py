"""A value's payload, as DUMP gives it (rdb.py), for Redis 7.0 or newer."""

from __future__ import annotations

from spark_streams.engine.persistence.crc64 import crc64
from spark_streams.engine.persistence.rdb import (
    HASH,
    LIST,
    SAME_FIELDS,
    SET,
    STREAM_2,
    STREAM_3,
    STRING,
    put_id,
    put_length,
    put_string,
)
from spark_streams.engine.persistence.rdb_encodings import pack
from spark_streams.engine.store.entry import fields_of
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.keyspace import Value
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.pel_range import Consumer, PelRange
from spark_streams.engine.store.stream import Stream
from spark_streams.ids import U64_MAX

WRITTEN_VERSION = 10  # Redis 7.0


def dump(value: Value, active_times: bool = False) -> bytes:
    """The payload of a value. With `active_times` consumers keep theirs, and Redis before 7.2 cannot read it."""
    out = bytearray()
    if isinstance(value, Stream):
        out.append(STREAM_3 if active_times else STREAM_2)
        _put_stream(out, value, active_times)
    elif isinstance(value, bytes):
        out.append(STRING)
        put_string(out, value)
    else:
        items = [word for pair in value.items() for word in pair] if isinstance(value, dict) else list(value)
        out.append(HASH if isinstance(value, dict) else SET if isinstance(value, set) else LIST)
        put_length(out, len(value))
        for item in items:
            put_string(out, item)
    out += (11 if active_times else WRITTEN_VERSION).to_bytes(2, "little")
    out += crc64(bytes(out)).to_bytes(8, "little")
    return bytes(out)


def _put_stream(out: bytearray, stream: Stream, active_times: bool) -> None:
    put_length(out, len(stream.nodes))
    for node in stream.nodes:
        first, listpack = _packed_node(node)
        put_string(out, first.to_bytes(16, "big"))
        put_string(out, listpack)
    put_length(out, stream.length)
    for entry_id in (stream.last_id, stream.first_id, stream.max_deleted_id):
        put_id(out, entry_id)
    put_length(out, stream.entries_added)
    put_length(out, len(stream.groups))
    for name, group in stream.groups.items():
        put_string(out, name)
        put_id(out, group.last_id)
        put_length(out, U64_MAX if group.entries_read is None else group.entries_read)
        put_length(out, len(group.pending))
        for pel_range in group.pending.index.ranges:
            tail = bytearray(_time(pel_range.time))
            put_length(tail, pel_range.deliveries)
            for entry_id in pel_range.id_list(stream):
                out += entry_id.to_bytes(16, "big")
                out += tail
        owners = _owners(group)
        put_length(out, len(owners))
        for consumer, pel_ranges in owners:
            put_string(out, consumer.name)
            out += _time(consumer.seen)
            if active_times:
                out += _time(consumer.active)
            put_length(out, sum(pel_range.count for pel_range in pel_ranges))
            for pel_range in pel_ranges:
                out += b"".join([entry_id.to_bytes(16, "big") for entry_id in pel_range.id_list(stream)])


def _owners(group: Group) -> list[tuple[Consumer, list[PelRange]]]:
    """Consumers and their ranges. What XNACK has released goes under the empty name, which is how XPENDING shows it."""
    released = group.nobody.pending.ranges
    owners = [
        (consumer, consumer.pending.ranges if consumer.name else consumer.pending.ranges + released)
        for consumer in group.consumers.values()
    ]
    return owners if not released or b"" in group.consumers else [*owners, (group.nobody, released)]


def _time(milliseconds: int) -> bytes:
    return milliseconds.to_bytes(8, "little", signed=True)


def _packed_node(node: Node) -> tuple[int, bytes]:
    """The id that its ids count from, and its living entries as a listpack."""
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
            elements += [SAME_FIELDS, ms, seq, *pairs[1::2], len(names) + 3]
        else:
            elements += [0, ms, seq, len(pairs) // 2, *pairs, len(pairs) + 4]
    return first, pack(elements)


def _difference(one: int, other: int) -> int:
    """Of two 64-bit numbers, as a signed 64-bit number: it may go once around."""
    return ((one - other + (1 << 63)) & U64_MAX) - (1 << 63)
