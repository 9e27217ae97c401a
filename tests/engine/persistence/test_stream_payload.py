"""DUMP and RESTORE: Redis' own format, checked with a real Redis in both directions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from spark_streams.base.ids import StreamId
from spark_streams.engine.persistence.rdb import STREAM_2, BadDataError, crc64, pack, put_length, put_string, unpack
from spark_streams.engine.persistence.stream_payload import OtherTypeError, WrongVersionError, dump, load
from spark_streams.engine.store.node_limits import NodeLimits
from tests.engine.state import Inside, state
from tests.engine.test_against_redis import EXAMPLES, GROUPS, Command, commands
from tests.engine.wire import Failed, Wire, wire
from tools.servers.server import Server, running_engine, serving

LIMITS = NodeLimits()


def test_the_checksum_is_redis_own() -> None:
    """Of a short text, and of one that is computed in lanes."""
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    text = random.Random(1).randbytes(200_001)
    half = crc64(text[:50_000])
    assert crc64(text) == crc64(text[100_000:], crc64(text[50_000:100_000], half))
    plain = 0
    for at in range(0, len(text), 1000):
        plain = crc64(text[at : at + 1000], plain)
    assert crc64(text) == plain


numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5000, 5000))
strings = st.one_of(
    st.binary(max_size=70), numbers.map(lambda one: b"%d" % one), st.sampled_from([b"-0", b"007", b"9" * 20]),
    st.sampled_from([126, 127, 4095, 4096, 16370, 16383, 70_000]).map(lambda size: b"x" * size),
)  # fmt: skip


@given(st.lists(strings, max_size=20))
def test_a_listpack_returns_its_elements(elements: list[bytes]) -> None:
    """Strings of all sizes, and numbers."""
    assert unpack(pack(elements)) == elements


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(st.lists(strings, max_size=20))
def test_a_damaged_listpack_is_refused_or_read(elements: list[bytes]) -> None:
    """What is read can be packed again; what is refused is so with an error that RESTORE has an answer for."""
    data = bytearray(pack(elements))
    for at in range(min(len(data), 200)):
        broken = bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            read = unpack(broken)
        except (BadDataError, IndexError):
            continue
        assert unpack(pack(read)) == read


@pytest.fixture(scope="module")
def redis(redis_server: Server) -> Iterator[Wire]:
    with wire(redis_server) as client:
        yield client
        client.call("CONFIG", "SET", "stream-node-max-entries", "100")


def compare(one: Any, other: Any) -> None:
    """Both hold the same, and DUMP of either is RESTOREd in the other as it was."""
    before = state(one)
    payloads = {key: one("DUMP", key) for _, key in before}
    other("FLUSHALL")
    for (_, key), (_, _, ttl) in before.items():
        assert other("RESTORE", key, 0 if ttl <= 0 else ttl * 100_000, payloads[key]) == b"OK"
    assert state(other) == before


def has_deleted_above_last(redis: Wire) -> bool:
    """Redis 7.0 takes an XSETID below a deleted entry. Newer servers and the engine refuse it."""
    flat: Any = redis.call("XINFO", "STREAM", "s")
    info = dict(zip(flat[0::2], flat[1::2], strict=True)) if isinstance(flat, list) else {}
    last, deleted = (
        StreamId.parse(info.get(name, b"0-0").decode()) for name in (b"last-generated-id", b"max-deleted-entry-id")
    )
    return deleted > last


@pytest.mark.in_turn
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(commands, min_size=5, max_size=60), st.sampled_from(["0", "2", "5", "100"]))
def test_streams_go_to_redis_and_back(redis: Wire, program: list[Command], node: str) -> None:
    """With deletions, groups, claims: nothing is lost on the way there, nor on the way back."""
    inside = Inside()
    inside.call("CONFIG", "SET", "stream-node-max-entries", node)
    redis.call("FLUSHALL")
    redis.call("CONFIG", "SET", "stream-node-max-entries", node)
    for call in (inside.call, redis.call):
        for group in GROUPS:
            call("XGROUP", "CREATE", "s", group, "0", "MKSTREAM")
        for words in program:
            call(*words)
    assume(not has_deleted_above_last(redis))
    compare(redis.call, Inside().call)
    compare(inside.call, redis.call)
    compare(redis.call, Inside().call)
    before = state(inside.call)
    assert inside.call("DEBUG", "RELOAD") == b"OK"
    assert state(inside.call) == before


def test_other_types_are_refused_by_name(redis: Wire) -> None:
    """DUMP of the engine, and RESTORE of what a Redis has dumped."""
    inside = Inside()
    redis.call("FLUSHALL")
    for line in ("SET t v", "HSET h a 1", "SADD s a", "SADD i 1", "LPUSH l a"):
        key = line.split()[1]
        for call in (inside.call, redis.call):
            call(*line.split())
        assert inside.call("DUMP", key) == "ERR this engine dumps streams only"
        refused = inside.call("RESTORE", "new", 0, redis.call("DUMP", key))
        assert refused == "ERR this engine restores streams only, and the payload is of another type"
    assert inside.call("EXISTS", "new") == 0


def test_a_reload_keeps_keys_of_all_types() -> None:
    """DEBUG RELOAD packs and unpacks the streams, and leaves the other values alone."""
    inside = Inside()
    for line in ("SET t v", "HSET h a 1", "SADD s a", "LPUSH l a", "XADD x 1-1 f v"):
        inside.call(*line.split())
    before = state(inside.call)
    assert inside.call("DEBUG", "RELOAD") == b"OK"
    assert (state(inside.call), len(before)) == (before, 5)


def test_a_big_stream_goes_both_ways(redis: Wire) -> None:
    """Long enough for compressed nodes, for lanes of the checksum and for wide numbers of entries."""
    inside = Inside()
    for number in range(3000):
        inside.call("XADD", "s", f"{1_700_000_000_000 + number // 7}-{number % 7}", "name", "value " * 10, "n", number)
    inside.call("XGROUP", "CREATE", "s", "g", "0")
    inside.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 2000, "STREAMS", "s", ">")
    compare(inside.call, redis.call)
    again = Inside()
    compare(redis.call, again.call)
    assert again.call("XRANGE", "s", "-", "+") == inside.call("XRANGE", "s", "-", "+")
    group = again.client.db.values[b"s"].groups[b"g"]  # type: ignore[union-attr]
    assert len(group.pending.index.ranges) == 1


def test_errors_are_redis_own(redis: Wire) -> None:
    """Options, busy keys, versions, checksums and data that is none."""
    inside = Inside()
    payload = inside.call("XADD", "k", "1-1", "f", "v") and inside.call("DUMP", "k")
    newer = payload[:-10] + b"\xff\x00"
    newer += crc64(newer).to_bytes(8, "little")
    odd = b"\x63abc\x0a\x00"
    odd += crc64(odd).to_bytes(8, "little")
    redis.call("FLUSHALL")
    redis.call("XADD", "k", "1-1", "f", "v")
    for request in [
        ("DUMP", "nothing"),
        ("RESTORE", "k", 0, payload),
        ("RESTORE", "k", 0, payload, "REPLACE"),
        ("RESTORE", "new", -1, payload),
        ("RESTORE", "new", "x", payload),
        ("RESTORE", "new", 0, payload[:-1]),
        ("RESTORE", "new", 0, payload[:-1] + bytes([payload[-1] ^ 1])),
        ("RESTORE", "new", 0, b""),
        ("RESTORE", "new", 0, newer),
        ("RESTORE", "new", 0, odd),
        ("RESTORE", "new", 0, payload, "IDLETIME", -1),
        ("RESTORE", "new", 0, payload, "IDLETIME", 1, "FREQ", 1),
        ("RESTORE", "new", 0, payload, "FREQ", 256),
        ("RESTORE", "new", 0, payload, "FREQ"),
        ("RESTORE", "new", 0, payload, "WHAT"),
        ("RESTORE", "new", 1, payload, "ABSTTL"),
        ("EXISTS", "new"),
        ("RESTORE", "new", 0, payload, "FREQ", 7, "REPLACE", "ABSTTL"),
        ("RESTORE", "new", 1, payload, "ABSTTL", "REPLACE"),
        ("EXISTS", "new"),
        ("RESTORE", "new", 5_000_000, payload, "IDLETIME", 7),
        ("XRANGE", "new", "-", "+"),
    ]:
        assert inside.call(*request) == redis.call(*request), request
    assert 4_990_000 < inside.call("PTTL", "new") <= 5_000_000


def test_a_restored_key_is_kept_in_words_that_any_redis_knows(tmp_path: Any, redis: Wire) -> None:
    """The append-only file holds no payload."""
    inside = Inside(tmp_path)
    inside.call("XADD", "s", "5-1", "a", "b")
    inside.call("XGROUP", "CREATE", "s", "g", "0")
    inside.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    payload = inside.call("DUMP", "s")
    inside.call("XDEL", "s", "5-1")
    assert inside.call("RESTORE", "s", 0, payload, "REPLACE") == b"OK"
    before = state(inside.call)
    inside.stop()
    assert b"RESTORE" not in (tmp_path / "appendonly.aof").read_bytes()
    again = Inside(tmp_path)
    assert state(again.call) == before
    again.stop()


@settings(max_examples=EXAMPLES * 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_payloads_are_refused_or_read(samples: list[bytes], data: st.DataObject) -> None:
    """Even with a checksum that fits: an error of its own, never another, and no long wait. What is read can be dumped
    again, and comes back as the same."""
    payload = bytearray(data.draw(st.sampled_from(samples))[:-10])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload))) :]
    payload += b"\x0e\x00"
    payload += crc64(bytes(payload)).to_bytes(8, "little")
    try:
        value = load(bytes(payload), LIMITS, 0)
    except (BadDataError, OtherTypeError, WrongVersionError):
        return
    assert dump(load(dump(value, 0), LIMITS, 0), 0) == dump(value, 0)


@pytest.fixture(scope="module")
def samples(redis_server: Server) -> list[bytes]:
    """Payloads of both servers."""
    found: list[bytes] = []
    with wire(redis_server) as redis:
        redis.call("FLUSHALL")
        for call in (redis.call, Inside().call):
            for number in range(30):
                call("XADD", "s", f"{number}-1", "name", "value " * 10, *(["x", number] if number % 5 else []))
            call("XDEL", "s", "5-1")
            call("XGROUP", "CREATE", "s", "g", "0")
            call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 7, "STREAMS", "s", ">")
            call("XREADGROUP", "GROUP", "g", "bob", "COUNT", 7, "STREAMS", "s", ">")
            found.append(call("DUMP", "s"))
        call("XADD", "s", "IDMP", "p", "1", "*", "a", 1)  # of the engine: this Redis has neither
        found.append(call("DUMP", "s"))
        call("XNACK", "s", "g", "FAIL", "IDS", 1, "6-1")
        found.append(call("DUMP", "s"))
    assert not any(isinstance(one, Failed) for one in found)
    return found


def sealed(body: bytes) -> bytes:
    """A payload with this value: version and checksum behind it."""
    whole = body + (10).to_bytes(2, "little")
    return whole + crc64(whole).to_bytes(8, "little")


def stream_payload(last: int, deleted: int, added: int, deliveries: int = 1) -> bytes:
    """One entry 5-0, a group with that entry pending, and these counters."""
    out = bytearray([STREAM_2])
    put_length(out, 1)
    put_string(out, (5 << 64).to_bytes(16, "big"))
    put_string(out, pack([1, 0, 1, b"f", 0, 2, 0, 0, b"v", 4]))
    put_length(out, 1)
    for number in (last, 0, 5, 0, deleted, 0, added):
        put_length(out, number)
    put_length(out, 1)
    put_string(out, b"g")
    for number in (5, 0, 1, 1):
        put_length(out, number)
    out += (5 << 64).to_bytes(16, "big") + (1000).to_bytes(8, "little")
    put_length(out, deliveries)
    put_length(out, 1)
    put_string(out, b"c")
    out += (1000).to_bytes(8, "little")
    put_length(out, 1)
    out += (5 << 64).to_bytes(16, "big")
    return sealed(bytes(out))


@pytest.mark.parametrize(
    "numbers",
    [(5, 6, 1), (5, 2**64 - 1, 1), (5, 0, 0), (5, 0, 2**63), (5, 0, 2**64 - 1), (5, 0, 1, 2**63)],
    ids=["deleted above last", "greatest deleted", "added below length", "added 2^63", "added 2^64", "deliveries 2^63"],
)
def test_restore_checks_counters_as_xsetid_does(numbers: tuple[int, ...]) -> None:
    """Numbers that XSETID refuses, or that no reply can carry, are not a stream."""
    with running_engine() as server, wire(server) as client:
        assert client.call("RESTORE", "s", "0", stream_payload(7, 6, 9)) == b"OK"
        assert client.call("RESTORE", "t", "0", stream_payload(*numbers)) == "ERR Bad data format"
        assert client.call("EXISTS", "t") == 0


def lzf(plain: int) -> bytes:
    """A compressed string of so many zeros, about; it takes a hundredth of them."""
    runs = (plain - 1) // 264
    packed = b"\x00\x00" + b"\xe0\xff\x00" * runs
    out = bytearray([0xC3])
    put_length(out, len(packed))
    put_length(out, 1 + 264 * runs)
    return bytes(out) + packed


def wide_nodes(length: int, count: int) -> bytes:
    """A stream of entries whose only field has a long name, which the payload has once."""
    entries: list[bytes | int] = []
    for number in range(count):
        entries += [2, number, 0, 1, 4]
    out = bytearray([STREAM_2])
    put_length(out, 1)
    put_string(out, (5 << 64).to_bytes(16, "big"))
    put_string(out, pack([count, 0, 1, b"n" * length, 0, *entries]))
    put_length(out, count)
    for number in (5 + count, 0, 5, 0, 0, 0, count, 0):
        put_length(out, number)
    return sealed(bytes(out))


def named_groups(sizes: list[int]) -> bytes:
    """An empty stream with groups whose names are compressed strings of these sizes."""
    out = bytearray([STREAM_2, 0, 0, 5, 0, 0, 0, 0, 0, 0])
    put_length(out, len(sizes))
    for number, size in enumerate(sizes):
        out += lzf(size + 264 * number) + bytes([5, 0, 0, 0, 0])
    return sealed(bytes(out))


BOMBS = {
    "a compressed name": named_groups([400_000_000]),
    "many compressed names": named_groups([20_000_000] * 40),
    "stream with a long field name": wide_nodes(300_000, 20_000),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("limit", ["maxmemory", "proto-max-bulk-len"])
def test_a_small_payload_does_not_grow_to_gigabytes(kind: str, limit: str) -> None:
    """It is refused before the memory is taken: above maxmemory, or else above proto-max-bulk-len."""
    payload = BOMBS[kind]
    assert len(payload) < 10_000_000
    with serving(f"--{limit}", "64mb") as served, wire(served) as client:
        client.socket.settimeout(60)
        reply = client.call("RESTORE", "k", "0", payload)
        assert isinstance(reply, Failed)
        assert limit in reply
        assert client.call("EXISTS", "k") == 0
        status = Path(f"/proc/{served.process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) < 250_000


def test_payloads_one_after_another_do_not_pass_maxmemory() -> None:
    """What each has become counts for the next one."""
    with serving("--maxmemory", "64mb") as served, wire(served) as client:
        payload = named_groups([20_000_000])
        replies = [client.call("RESTORE", f"k{number}", "0", payload) for number in range(10)]
        assert replies[:2] == [b"OK"] * 2
        assert set(map(str, replies[4:])) == {"OOM command not allowed when used memory > 'maxmemory'."}
