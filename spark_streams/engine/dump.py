"""Values as bytes, in Redis' own format: what DUMP gives and RESTORE takes.

    type 1 | value … | RDB version 2, little endian | CRC-64 of all before it 8, little endian

A stream (type 19, since Redis 7.0; 15 before, 21 since 7.2):

    nodes n | ( id 16, big endian | listpack ) …
    length | last id | first id | greatest deleted id | entries added             from 19 on
    groups n | ( name | last id | entries read (from 19 on)
                 | pending n | ( id 16 | time 8 | deliveries ) …
                 | consumers n | ( name | seen 8 | active 8 (from 21 on) | pending n | id 16 … ) … ) …

and in a node's listpack

    entries | deleted | fields n | field … | 0
    flags | ms | seq | [fields n | field value …  or, where the fields are the first entry's,  value …] | elements

with ids as differences to the node's. Written is what Redis 7.0 reads; read is whatever Redis from 5.0 to 7.4 writes
for the types that the engine has. What XNACK has released has no place in it: it goes as pending for a consumer
without a name. Nor have the messages that XADD IDMP remembers. Sources: `rdb.c`, `t_stream.c`, `cluster.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from spark_streams.engine.borders import NodeLimits
from spark_streams.engine.crc64 import crc64
from spark_streams.engine.group import Consumer, Group, distance
from spark_streams.engine.keyspace import Value
from spark_streams.engine.node import Node, entry_wire, fields_of
from spark_streams.engine.packed import BadDataError, pack, unpack, unpack_intset, unpack_ziplist
from spark_streams.engine.pending import Run
from spark_streams.engine.protocol import fields_wire
from spark_streams.engine.stream import Stream
from spark_streams.ids import U64_MAX

WRITTEN_VERSION = 10  # Redis 7.0
READ_VERSION = 12  # Redis 7.4

_STRING, _LIST, _SET, _HASH = 0, 1, 2, 4
_HASH_ZIPMAP, _LIST_ZIPLIST, _SET_INTSET, _HASH_ZIPLIST, _LIST_QUICKLIST = 9, 10, 11, 13, 14
_STREAM, _HASH_LISTPACK, _LIST_QUICKLIST_2, _STREAM_2, _SET_LISTPACK, _STREAM_3 = 15, 16, 18, 19, 20, 21
_DELETED, _SAME_FIELDS = 1, 2
_MAX_RATIO = 90  # LZF cannot do better: 264 bytes from 3

__all__ = ["BadDataError", "WrongVersionError", "dump", "load", "reloaded"]


class WrongVersionError(ValueError):
    """The payload is of a newer version than this, or its checksum does not fit."""


# Writing


def reloaded(value: Value, limits: NodeLimits, now: int) -> Value:
    """The value as it comes back from its payload, with what a payload has no place for carried over."""
    fresh = load(dump(value, active_times=True), limits, now)
    if isinstance(value, Stream) and isinstance(fresh, Stream):
        fresh.idempotence = value.idempotence
        for name, group in fresh.groups.items():
            before = value.groups[name]
            for run in before.nobody.pending.runs:
                for entry_id in run.id_list(value):
                    group.pending.take(entry_id, fresh)
                    group.pending.put(entry_id, group.nobody, run.time, run.deliveries, fresh)
            if b"" not in before.consumers:
                group.consumers.pop(b"", None)
    return fresh


def dump(value: Value, active_times: bool = False) -> bytes:
    """The payload of a value. With `active_times` consumers keep theirs, and Redis before 7.2 cannot read it."""
    out = bytearray()
    if isinstance(value, Stream):
        out.append(_STREAM_3 if active_times else _STREAM_2)
        _put_stream(out, value, active_times)
    elif isinstance(value, bytes):
        out.append(_STRING)
        _put_string(out, value)
    else:
        items = [word for pair in value.items() for word in pair] if isinstance(value, dict) else list(value)
        out.append(_HASH if isinstance(value, dict) else _SET if isinstance(value, set) else _LIST)
        _put_length(out, len(value))
        for item in items:
            _put_string(out, item)
    out += (11 if active_times else WRITTEN_VERSION).to_bytes(2, "little")
    out += crc64(bytes(out)).to_bytes(8, "little")
    return bytes(out)


def _put_length(out: bytearray, value: int) -> None:
    if value < 1 << 6:
        out.append(value)
    elif value < 1 << 14:
        out += (value | 1 << 14).to_bytes(2, "big")
    elif value < 1 << 32:
        out.append(0x80)
        out += value.to_bytes(4, "big")
    else:
        out.append(0x81)
        out += value.to_bytes(8, "big")


def _put_string(out: bytearray, text: bytes) -> None:
    _put_length(out, len(text))
    out += text


def _put_id(out: bytearray, entry_id: int) -> None:
    _put_length(out, entry_id >> 64)
    _put_length(out, entry_id & U64_MAX)


def _put_stream(out: bytearray, stream: Stream, active_times: bool) -> None:
    _put_length(out, len(stream.nodes))
    for node in stream.nodes:
        first, listpack = _packed_node(node)
        _put_string(out, first.to_bytes(16, "big"))
        _put_string(out, listpack)
    _put_length(out, stream.length)
    for entry_id in (stream.last_id, stream.first_id, stream.max_deleted_id):
        _put_id(out, entry_id)
    _put_length(out, stream.entries_added)
    _put_length(out, len(stream.groups))
    for name, group in stream.groups.items():
        _put_string(out, name)
        _put_id(out, group.last_id)
        _put_length(out, U64_MAX if group.entries_read is None else group.entries_read)
        _put_length(out, len(group.pending))
        for run in group.pending.index.runs:
            tail = bytearray(_time(run.time))
            _put_length(tail, run.deliveries)
            for entry_id in run.id_list(stream):
                out += entry_id.to_bytes(16, "big")
                out += tail
        owners = _owners(group)
        _put_length(out, len(owners))
        for consumer, runs in owners:
            _put_string(out, consumer.name)
            out += _time(consumer.seen)
            if active_times:
                out += _time(consumer.active)
            _put_length(out, sum(run.count for run in runs))
            for run in runs:
                out += b"".join([entry_id.to_bytes(16, "big") for entry_id in run.id_list(stream)])


def _owners(group: Group) -> list[tuple[Consumer, list[Run]]]:
    """Consumers and their runs. What XNACK has released goes under the empty name, which is how XPENDING shows it."""
    released = group.nobody.pending.runs
    owners = [(one, one.pending.runs if one.name else one.pending.runs + released) for one in group.consumers.values()]
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
            elements += [_SAME_FIELDS, ms, seq, *pairs[1::2], len(names) + 3]
        else:
            elements += [0, ms, seq, len(pairs) // 2, *pairs, len(pairs) + 4]
    return first, pack(elements)


def _difference(one: int, other: int) -> int:
    """Of two 64-bit numbers, as a signed 64-bit number: it may go once around."""
    return ((one - other + (1 << 63)) & U64_MAX) - (1 << 63)


# Reading


def load(payload: bytes, limits: NodeLimits, now: int) -> Value:
    """The value of a payload. Raises WrongVersionError, BadDataError."""
    if len(payload) < 10 or int.from_bytes(payload[-10:-8], "little") > READ_VERSION:
        raise WrongVersionError
    checksum = int.from_bytes(payload[-8:], "little")
    if checksum and checksum != crc64(payload[:-8]):
        raise WrongVersionError
    source = _Source(payload[:-10])
    try:
        kind = source.take(1)[0]
        read = _READERS.get(kind)
        value = _stream(source, kind, limits, now) if kind in _STREAM_KINDS else read(source) if read else None
    except (IndexError, ValueError, OverflowError) as problem:
        raise BadDataError(str(problem)) from None
    if value is None or source.at != len(source.data) or not (isinstance(value, bytes | Stream) or value):
        raise BadDataError("not a value of a type that this engine has")
    return value


class _Source:
    """Bytes and how far they are read. Raises BadDataError where they end too early."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise BadDataError("ends too early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def length(self) -> int:
        """A number that is no special encoding."""
        value, special = self._length()
        if special:
            raise BadDataError("a string where a number belongs")
        return value

    def count(self, at_least: int = 1) -> int:
        """A number of things that take at least so many bytes each: no more than there can be."""
        value = self.length()
        if value * at_least > len(self.data) - self.at:
            raise BadDataError("counts more than there is")
        return value

    def _length(self) -> tuple[int, bool]:
        first = self.take(1)[0]
        kind = first >> 6
        if kind == 0:
            return first & 63, False
        if kind == 1:
            return (first & 63) << 8 | self.take(1)[0], False
        if kind == 3:
            return first & 63, True
        if first == 0x80:
            return int.from_bytes(self.take(4), "big"), False
        if first == 0x81:
            return int.from_bytes(self.take(8), "big"), False
        raise BadDataError("not a length")

    def string(self) -> bytes:
        """A string, whichever way it is stored."""
        value, special = self._length()
        if not special:
            return self.take(value)
        if value < 3:
            return b"%d" % int.from_bytes(self.take(1 << value), "little", signed=True)
        if value != 3:
            raise BadDataError("not a string")
        packed, plain = self.length(), self.length()
        if plain > packed * _MAX_RATIO:
            raise BadDataError("a compressed string claims too much")
        return _expand(self.take(packed), plain)

    def id(self) -> int:
        """Two numbers."""
        return self.length() << 64 | self.length()

    def raw_id(self) -> int:
        """Sixteen bytes."""
        return int.from_bytes(self.take(16), "big")

    def time(self) -> int:
        """Milliseconds."""
        return int.from_bytes(self.take(8), "little", signed=True)


def _expand(data: bytes, length: int) -> bytes:
    """LZF: runs of plain bytes, and references to what was there up to 8 KB before."""
    out = bytearray()
    at = 0
    while at < len(data):
        control = data[at]
        at += 1
        if control < 32:
            out += data[at : at + control + 1]
            at += control + 1
            continue
        count = control >> 5
        if count == 7:
            count += data[at]
            at += 1
        start = len(out) - ((control & 31) << 8) - data[at] - 1
        at += 1
        count += 2
        if start < 0:
            raise BadDataError("a compressed string refers to nothing")
        if start + count <= len(out):
            out += out[start : start + count]
        else:
            piece = out[start:]
            out += (piece * (count // len(piece) + 1))[:count]
    if at != len(data) or len(out) != length:
        raise BadDataError("a compressed string has another length")
    return bytes(out)


def _strings(source: _Source) -> list[bytes]:
    return [source.string() for _ in range(source.count())]


def _distinct(found: list[bytes]) -> set[bytes]:
    if len(set(found)) != len(found):
        raise BadDataError("a member stands there twice")
    return set(found)


def _pairs(found: list[bytes]) -> dict[bytes, bytes]:
    value = dict(zip(found[::2], found[1::2], strict=True))
    if len(value) * 2 != len(found):
        raise BadDataError("a field stands there twice")
    return value


def _hash(source: _Source) -> dict[bytes, bytes]:
    return _pairs([source.string() for _ in range(2 * source.count(2))])


def _quicklist(source: _Source, packed: bool) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(source.count()):
        plain = packed and source.length() == 1
        node = source.string()
        found += [node] if plain else unpack(node) if packed else unpack_ziplist(node)
    return found


_READERS: dict[int, Callable[[_Source], Value]] = {
    _STRING: _Source.string,
    _LIST: _strings,
    _SET: lambda source: _distinct(_strings(source)),
    _HASH: _hash,
    _LIST_ZIPLIST: lambda source: unpack_ziplist(source.string()),
    _SET_INTSET: lambda source: _distinct(unpack_intset(source.string())),
    _HASH_ZIPLIST: lambda source: _pairs(unpack_ziplist(source.string())),
    _LIST_QUICKLIST: lambda source: _quicklist(source, packed=False),
    _HASH_LISTPACK: lambda source: _pairs(unpack(source.string())),
    _LIST_QUICKLIST_2: lambda source: _quicklist(source, packed=True),
    _SET_LISTPACK: lambda source: _distinct(unpack(source.string())),
}
_STREAM_KINDS = (_STREAM, _STREAM_2, _STREAM_3)


def _stream(source: _Source, kind: int, limits: NodeLimits, now: int) -> Stream:
    stream = Stream(limits)
    for _ in range(source.count(18)):
        first = source.string()
        if len(first) != 16:
            raise BadDataError("a node without an id")
        for entry_id, pairs in _entries(int.from_bytes(first, "big"), unpack(source.string())):
            if entry_id <= stream.last_id:
                raise BadDataError("ids out of order")
            stream.append(entry_id, entry_wire(entry_id, fields_wire(pairs)), pairs)
    if source.length() != stream.length:
        raise BadDataError("counts its entries wrongly")
    last = source.id()
    if last < stream.last_id:
        raise BadDataError("the last id is not the last")
    stream.last_id = last
    if kind != _STREAM:
        source.id()  # the first one: it is seen from the entries
        stream.max_deleted_id = source.id()
        stream.entries_added = source.length()
    for _ in range(source.count(4)):
        name = source.string()
        if name in stream.groups:
            raise BadDataError("a group stands there twice")
        stream.groups[name] = _group(source, kind, stream, now)
    return stream


def _entries(first: int, elements: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The living entries of a node."""
    live, deleted, width = int(elements[0]), int(elements[1]), int(elements[2])
    names = elements[3 : 3 + width]
    at = 4 + width
    if live < 0 or deleted < 0 or width < 0 or len(elements) < at or elements[at - 1] != b"0":
        raise BadDataError("not a node of a stream")
    for _ in range(live + deleted):
        flags = int(elements[at])
        ms = (first >> 64) + int(elements[at + 1]) & U64_MAX
        entry_id = ms << 64 | first + int(elements[at + 2]) & U64_MAX
        at += 3
        if flags & _SAME_FIELDS:
            values = elements[at : at + width]
            pairs = [word for pair in zip(names, values, strict=True) for word in pair]
            at += width
            count = width + 3
        else:
            own = int(elements[at])
            pairs = elements[at + 1 : at + 1 + 2 * own]
            at += 1 + 2 * own
            count = 2 * own + 4
        if int(elements[at]) != count:
            raise BadDataError("not an entry of a stream")
        at += 1
        live -= not flags & _DELETED
        if not flags & _DELETED:
            yield entry_id, pairs
    if at != len(elements) or live:
        raise BadDataError("a node counts its entries wrongly")


def _group(source: _Source, kind: int, stream: Stream, now: int) -> Group:
    group = Group(source.id(), None)
    if kind == _STREAM:
        group.entries_read = distance(stream, group.last_id)
    else:
        read = source.length()
        group.entries_read = None if read >> 63 else read
    pending = {}
    for _ in range(source.count(25)):
        entry_id = source.raw_id()
        if entry_id in pending:
            raise BadDataError("an entry is pending twice")
        pending[entry_id] = (source.time(), source.length())
    owners: dict[int, Consumer] = {}
    for _ in range(source.count(10)):
        name = source.string()
        if name in group.consumers:
            raise BadDataError("a consumer stands there twice")
        consumer = group.consumers[name] = Consumer(name, source.time())
        consumer.active = source.time() if kind == _STREAM_3 else consumer.seen
        for _ in range(source.count(16)):
            owner = source.raw_id()
            if owner not in pending or owner in owners:
                raise BadDataError("what is pending for a consumer is not so for its group")
            owners[owner] = consumer
    if len(owners) != len(pending):
        raise BadDataError("an entry is pending for nobody")
    alike = groupby(sorted(pending), lambda entry_id: (id(owners[entry_id]), *pending[entry_id]))
    for (_, time, deliveries), ids in alike:
        _add_run(group, stream, list(ids), owners, time, deliveries)
    return group


def _add_run(
    group: Group, stream: Stream, ids: list[int], owners: dict[int, Consumer], time: int, deliveries: int
) -> None:
    run = Run(ids[0], ids[-1], len(ids), owners[ids[0]], time, deliveries)
    if run.count > 1 and run.id_list(stream) != ids:
        run.ids = ids
    group.pending.add(run)
