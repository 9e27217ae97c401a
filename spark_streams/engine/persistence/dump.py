"""A stream's payload for DUMP (rdb.py), for the oldest Redis that supports all of its contents: 7.0, 8.6 or 8.8."""

from __future__ import annotations

from itertools import dropwhile

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.persistence.crc64 import crc64
from spark_streams.engine.persistence.listpack import pack
from spark_streams.engine.persistence.rdb import (
    SAME_FIELDS,
    STREAM_2,
    STREAM_3,
    STREAM_4,
    STREAM_5,
    put_id,
    put_length,
    put_string,
)
from spark_streams.engine.store.entry import fields_of
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.idempotence import Idempotence
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.pel_range import Consumer
from spark_streams.engine.store.stream import Stream

_VERSIONS = {STREAM_2: 10, STREAM_4: 13, STREAM_5: 14}  # format version that introduced a type of stream


def dump(stream: Stream, now: int, newest: bool = False) -> bytes:
    """Return the payload of a stream. now: Unix milliseconds.

    newest: use the newest format, which also holds when consumers were last active.
    """
    kind = STREAM_5 if newest else _kind_of(stream)
    out = bytearray([kind])
    _put_stream(out, stream, kind, now)
    out += _VERSIONS[kind].to_bytes(2, "little")
    out += crc64(bytes(out)).to_bytes(8, "little")
    return bytes(out)


def _kind_of(stream: Stream) -> int:
    """Return the oldest type that supports all contents of this stream."""
    if any(group.released.pending.count for group in stream.groups.values()):
        return STREAM_5
    return STREAM_4 if stream.idempotence.used else STREAM_2


def _put_stream(out: bytearray, stream: Stream, kind: int, now: int) -> None:
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
        _put_group(out, stream, group, kind)
    if kind >= STREAM_4:
        _put_idempotence(out, stream.idempotence, now)


def _put_group(out: bytearray, stream: Stream, group: Group, kind: int) -> None:
    put_id(out, group.last_id)
    put_length(out, U64_MAX if group.entries_read is None else group.entries_read)
    put_length(out, len(group.pending))
    for pel_range in group.pending.index.ranges:
        tail = bytearray(_time(pel_range.time))
        put_length(tail, pel_range.deliveries)
        for entry_id in pel_range.id_list(stream):
            out += entry_id.to_bytes(16, "big")
            out += tail
    put_length(out, len(group.consumers))
    for consumer in group.consumers.values():
        put_string(out, consumer.name)
        out += _time(consumer.seen)
        if kind >= STREAM_3:
            out += _time(consumer.active)
        _put_ids(out, stream, consumer)
    if kind >= STREAM_5:
        _put_ids(out, stream, group.released)


def _put_ids(out: bytearray, stream: Stream, owner: Consumer) -> None:
    """Write the pending entries of this consumer, or the released ones."""
    put_length(out, owner.pending.count)
    for pel_range in owner.pending.ranges:
        out += b"".join([entry_id.to_bytes(16, "big") for entry_id in pel_range.id_list(stream)])


def _put_idempotence(out: bytearray, memory: Idempotence, now: int) -> None:
    """Write the remembered idempotent adds that have not expired."""
    put_length(out, memory.duration)
    put_length(out, memory.max_size)
    latest = memory.latest_forgotten(now)
    alive = [
        (producer, remaining_messages)
        for producer, messages in sorted(memory.producers.items())
        if (remaining_messages := list(dropwhile(lambda item: item[1] >> 64 <= latest, messages.items())))
    ]
    put_length(out, len(alive))
    for producer, remaining_messages in alive:
        put_string(out, producer)
        put_length(out, len(remaining_messages))
        for message, entry_id in remaining_messages:
            put_string(out, message)
            put_id(out, entry_id)
    put_length(out, memory.added)
    put_length(out, memory.duplicates)


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
            elements += [SAME_FIELDS, ms, seq, *pairs[1::2], len(names) + 3]
        else:
            elements += [0, ms, seq, len(pairs) // 2, *pairs, len(pairs) + 4]
    return first, pack(elements)


def _difference(number: int, base: int) -> int:
    """Return the difference of two 64-bit numbers as a signed 64-bit number; it may wrap around."""
    return ((number - base + (1 << 63)) & U64_MAX) - (1 << 63)
