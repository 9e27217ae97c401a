"""RESTORE of small payloads that expand to millions of elements: refused before they are expanded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from spark_streams.engine.persistence.rdb import STREAM_2, most_elements, pack, put_id, put_length, put_string
from tests.engine.persistence.test_crashes import FILE
from tests.engine.persistence.test_stream_payload import sealed, wide_nodes
from tests.engine.state import Inside
from tests.engine.wire import Failed, wire
from tools.servers.server import Server

UNKNOWN = 0xFFFF
TOO_MANY = "ERR this payload expands to over "
BAD = "ERR Bad data format"


def repeated(unit: bytes, times: int) -> bytes:
    """LZF of `unit` so many times: once as it is, then as references to the bytes before."""
    out, left = bytearray([len(unit) - 1]) + unit, len(unit) * (times - 1)
    while left:
        count = min(264, left)
        if count < 3:
            out += bytes([count - 1]) + (unit * 3)[(len(unit) * times - left) % len(unit) :][:count]
        elif count < 9:
            out += bytes([count - 2 << 5, len(unit) - 1])
        else:
            out += bytes([7 << 5, count - 9, len(unit) - 1])
        left -= count
    return bytes(out)


def literal(data: bytes) -> bytes:
    """LZF that compresses nothing."""
    pieces = [data[start : start + 32] for start in range(0, len(data), 32)]
    return b"".join(bytes([len(piece) - 1]) + piece for piece in pieces)


def put_listpack(out: bytearray, elements: list[Any], unit: list[Any], times: int, count: int | None = None) -> None:
    """A compressed listpack of these elements, and of `unit` so many times; `count` in its header, if it is given."""
    head, body = pack(elements)[6:-1], pack(unit)[6:-1]
    size = 6 + len(head) + len(body) * times + 1
    right = min(len(elements) + len(unit) * times, UNKNOWN)
    header = size.to_bytes(4, "little") + (right if count is None else count).to_bytes(2, "little")
    packed = literal(header + head) + repeated(body, times) + literal(b"\xff")
    out.append(0xC3)
    put_length(out, len(packed))
    put_length(out, size)
    out += packed


def payload(nodes: int, elements: list[Any], unit: list[Any], times: int, count: int | None = None) -> bytes:
    """A stream of so many nodes of one entry each, `put_listpack`; without groups."""
    out = bytearray([STREAM_2])
    put_length(out, nodes)
    for node in range(nodes):
        put_string(out, (node + 1 << 64).to_bytes(16, "big"))
        put_listpack(out, elements, unit, times, count)
    put_length(out, nodes)
    for entry_id in (nodes << 64, 1 << 64, 0):
        put_id(out, entry_id)
    put_length(out, nodes)
    put_length(out, 0)
    return sealed(bytes(out))


def deleted(nodes: int, times: int) -> bytes:
    """Valid: one entry and then so many deleted ones in each node."""
    return payload(nodes, [1, times, 0, 0, 2, 0, 0, 3], [3, 0, 0, 3], times)


def empty_fields(nodes: int, times: int) -> bytes:
    """Valid: an entry of so many fields without name and value in each node; its count of elements closes it."""
    out = bytearray([STREAM_2])
    put_length(out, nodes)
    for node in range(nodes):
        put_string(out, (node + 1 << 64).to_bytes(16, "big"))
        head, body = pack([1, 0, 0, 0, 0, 0, 0, times])[6:-1], pack([0, 0])[6:-1]
        tail = pack([2 * times + 4])[6:-1]
        size = 6 + len(head) + len(body) * times + len(tail) + 1
        header = size.to_bytes(4, "little") + min(9 + 2 * times, UNKNOWN).to_bytes(2, "little")
        packed = literal(header + head) + repeated(body, times) + literal(tail + b"\xff")
        out.append(0xC3)
        put_length(out, len(packed))
        put_length(out, size)
        out += packed
    put_length(out, nodes)
    for entry_id in (nodes << 64, 1 << 64, 0):
        put_id(out, entry_id)
    put_length(out, nodes)
    put_length(out, 0)
    return sealed(bytes(out))


PAYLOADS: dict[str, tuple[bytes, str]] = {
    "four million in one node": (payload(1, [], [0], 4_000_000), TOO_MANY),
    "a count that is too low": (payload(1, [1, 0, 0, 0], [0], 4_000_000, 100), BAD),
    "a count that is too high": (payload(60, [1, 0, 0, 0], [0], 1_000, 65_534), BAD),
    "many nodes": (payload(61, [1, 0, 0, 0], [0], 65_000), TOO_MANY),
    "deleted entries in one node": (deleted(1, 1_000_000), TOO_MANY),
    "deleted entries in many nodes": (deleted(61, 16_000), TOO_MANY),
    "fields without a name": (empty_fields(1, 2_000_000), TOO_MANY),
    "fields without a name in many nodes": (empty_fields(61, 32_000), TOO_MANY),
    "a long name for many entries": (wide_nodes(90_000, 5_000), TOO_MANY),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_it_is_refused_before_it_is_expanded(name: str) -> None:
    """A million elements take half a second. Here it is the processor's time, which other processes do not change."""
    data, reply = PAYLOADS[name]
    assert len(data) < 500_000
    inside = Inside()
    took = []
    for _ in range(3):  # beside other processes the same work can take half as long again: the least counts
        begun = time.process_time()
        answer = inside.call("RESTORE", "k", 0, data)
        took.append(time.process_time() - begun)
        assert isinstance(answer, Failed)
        assert answer.startswith(reply)
    assert min(took) < 0.15
    assert inside.call("EXISTS", "k") == 0


def test_the_error_says_what_to_do() -> None:
    data = deleted(1, 1_000_000)
    assert Inside().call("RESTORE", "k", 0, data) == (
        f"ERR this payload expands to over {4 * len(data)} elements. Send a payload that is not compressed: "
        "CONFIG SET rdbcompression no on its server, then DUMP"
    )


FROM_REDIS: dict[str, tuple[int, dict[str, Any]]] = {
    "many small numbers": (20_000, {f"f{number}": 0 for number in range(20)}),
    "many fields": (2, {f"f{number}": "v" for number in range(60_000)}),
    "equal texts": (2_000, {f"f{number}": "x" * 100 for number in range(5)}),
}


@pytest.mark.parametrize(("entries", "fields"), FROM_REDIS.values(), ids=FROM_REDIS)
def test_what_a_redis_dumps_is_restored(
    engine_server: Server, redis_server: Server, entries: int, fields: dict[str, Any]
) -> None:
    """Compressed, with up to four elements for each byte."""
    with redis_server.client() as redis, wire(engine_server) as engine:
        redis.flushall()
        batch = redis.pipeline(transaction=False)
        for _ in range(entries):
            batch.xadd("s", fields)
        batch.execute()
        data = redis.execute_command("DUMP", "s", NEVER_DECODE=True)
        engine.call("FLUSHALL")
        engine.socket.settimeout(30)
        assert engine.call("RESTORE", "s", 0, data) == b"OK"
        assert engine.call("XLEN", "s") == entries
        redis.flushall()


def test_an_uncompressed_payload_of_any_size_is_restored() -> None:
    entries: list[Any] = []
    for number in range(40_000):
        entries += [2, 0, number, 1, 4]
    out = bytearray([STREAM_2])
    put_length(out, 1)
    put_string(out, (1 << 64).to_bytes(16, "big"))
    put_string(out, pack([40_000, 0, 1, b"n", 0, *entries]))
    put_length(out, 40_000)
    for entry_id in ((1 << 64) + 39_999, 1 << 64, 0):
        put_id(out, entry_id)
    put_length(out, 40_000)
    put_length(out, 0)
    inside = Inside()
    assert inside.call("RESTORE", "s", 0, sealed(bytes(out))) == b"OK"
    assert inside.call("XLEN", "s") == 40_000


def test_a_file_may_hold_what_a_client_may_not_send(tmp_path: Path) -> None:
    """Redis writes RESTORE into its append-only file as it was sent. It is read whole, and a wrong one is refused."""
    good = b"*4\r\n$7\r\nRESTORE\r\n$1\r\nk\r\n$1\r\n0\r\n$%d\r\n%b\r\n"
    data = deleted(2, 30_000)
    (tmp_path / FILE).write_bytes(good % (len(data), data))
    inside = Inside(tmp_path)
    assert inside.call("XLEN", "k") == 2
    inside.stop()
    data = PAYLOADS["a count that is too low"][0]
    (tmp_path / FILE).write_bytes(good % (len(data), data))
    with pytest.raises(Exception, match="damaged at offset 0: .*Bad data format"):
        Inside(tmp_path)


@pytest.mark.parametrize(
    ("count", "size", "most"), [(5, 100, 5), (60, 100, 46), (UNKNOWN, 100, 46), (UNKNOWN, 7, 0), (9, 0, 0)]
)
def test_the_most_elements_of_a_listpack(count: int, size: int, most: int) -> None:
    """By its header, and because each takes two bytes."""
    assert most_elements(bytes(4) + count.to_bytes(2, "little"), size) == most
