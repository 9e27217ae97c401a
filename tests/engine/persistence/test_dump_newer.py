"""DUMP and RESTORE of what Redis 7 has no place for: messages of idempotent adds (8.6), released entries (8.8)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spark_streams.engine.persistence.rdb import STREAM_2, STREAM_4, STREAM_5, BadDataError
from spark_streams.engine.persistence.stream_payload import dump, load
from spark_streams.engine.store.node_limits import NodeLimits
from spark_streams.engine.store.remembered_messages import message_of
from spark_streams.engine.store.stream import StoredStream
from tests.engine.state import Inside, state
from tests.engine.wire import Failed, wire
from tools.servers.server import Server

# What Redis 8.6 and Redis 8.8 gave for DUMP s after the following, which took a millisecond or two:
#   XADD s 1790000000000-0 a 0, XCFGSET s IDMP-DURATION 60 IDMP-MAXSIZE 3, XGROUP CREATE s g 0,
#   XADD s IDMP p 1 * a 1, IDMP q 1 … a 1, IDMP p 2 … a 2, IDMP p 1 … a 1, IDMP p 3 … a 3,
#   XADD s IDMPAUTO auto * f 1 g 2, IDMPAUTO auto * g 2 f 1, IDMP p 4 … a 4,
#   XREADGROUP GROUP g ann COUNT 3 STREAMS s >, XDEL of the second of these; 8.8: XNACK s g FAIL of the others
REDIS_8_6 = bytes.fromhex("""
1a0110000001a0c4506c000000000000000000c34061409207920000002c000601400007816102000102010060010904010301f4ff00fa37
012021010900201f0004201be001112010e006110002201fe00523000320430004204de00135401f02816602206b0467020201082031e001
1b0005202b020401ff0681000001a1fc4a6cff0581000001a0c4506c000081000001a1fc4a6cff000701016781000001a1fc4a6cff010303
000001a0c4506c000000000000000000ff6c4afca101000001000001a1fc4a6cff0000000000000000ff6c4afca101000001000001a1fc4a
6cff0000000000000001ff6c4afca1010000010103616e6eff6c4afca1010000ff6c4afca101000003000001a0c4506c0000000000000000
00000001a1fc4a6cff0000000000000000000001a1fc4a6cff00000000000000013c0303046175746f01102ac518c21b510f648ec36be1e4
e2fb0281000001a1fc4a6cff04017003c00281000001a1fc4a6cff02c00381000001a1fc4a6cff03c00481000001a1fc4a6cff05017101c0
0181000001a1fc4a6cff0106020d00dca68ad787c863ea
""")
REDIS_8_8 = bytes.fromhex("""
1b0110000001a0c4506c000000000000000000c34061409207920000002c000601400007816102000102010060010904010301f40101fa37
012021010900201f0004201be001112010e006110002201fe00523000320430004204de00135401f02816602206b0467020201082031e001
1b0005202b020401ff0681000001a1fc4a6d010581000001a0c4506c000081000001a1fc4a6d01000701016781000001a1fc4a6d01010303
000001a0c4506c000000000000000000000000000000000001000001a1fc4a6d010000000000000000016d4afca101000001000001a1fc4a
6d0100000000000000010000000000000000010103616e6e016d4afca1010000016d4afca101000001000001a1fc4a6d0100000000000000
0002000001a0c4506c000000000000000000000001a1fc4a6d0100000000000000013c0303046175746f01102ac518c21b510f648ec36be1
e4e2fb0281000001a1fc4a6d0104017003c00281000001a1fc4a6d0102c00381000001a1fc4a6d0103c00481000001a1fc4a6d0105017101
c00181000001a1fc4a6d010106020e00c2d995b5e44b7d36
""")
LIMITS = NodeLimits()
SAMPLES = pytest.mark.parametrize(
    ("payload", "ms"), [(REDIS_8_6, 1795234098431), (REDIS_8_8, 1795234098433)], ids=["8.6", "8.8"]
)


def restored(payload: bytes, now: int) -> StoredStream:
    """The stream that RESTORE makes of a payload at this time."""
    stream = load(payload, LIMITS, now)
    assert isinstance(stream, StoredStream)
    return stream


@SAMPLES
def test_what_redis_has_dumped_is_taken(payload: bytes, ms: int) -> None:
    """Bounds, producers, messages in their order, counters; groups and what is pending."""
    inside = Inside(clock=lambda: ms)
    assert inside.call("RESTORE", "s", 0, payload) == b"OK"
    info = inside.call("XINFO", "STREAM", "s")
    known = dict(zip(info[::2], info[1::2], strict=True))
    assert known[b"length"] == 6
    assert (known[b"idmp-duration"], known[b"idmp-maxsize"]) == (60, 3)
    assert (known[b"pids-tracked"], known[b"iids-tracked"]) == (3, 5)
    assert (known[b"iids-added"], known[b"iids-duplicates"]) == (6, 2)
    for producer, message, seq in (("p", "2", 2), ("p", "3", 3), ("p", "4", 5), ("q", "1", 1)):
        assert inside.call("XADD", "s", "IDMP", producer, message, "*", "a", 9) == b"%d-%d" % (ms, seq)
    assert inside.call("XADD", "s", "IDMPAUTO", "auto", "*", "g", 2, "f", 1) == b"%d-4" % ms
    released = payload is REDIS_8_8
    first, last = b"1790000000000-0", b"%d-1" % ms
    owners = [[b"ann", b"1" if released else b"3"]]
    assert inside.call("XPENDING", "s", "g") == [3, first, last, owners]
    rows = inside.call("XPENDING", "s", "g", "-", "+", 9)
    assert [row[1] for row in rows] == ([b"", b"ann", b""] if released else [b"ann"] * 3)
    # The oldest of three went for the fourth.
    assert inside.call("XADD", "s", "IDMP", "p", "1", "*", "a", 9) == b"%d-6" % ms


@SAMPLES
def test_what_is_dumped_is_what_redis_would_dump(payload: bytes, ms: int) -> None:
    """The same bytes again, but for the listpack and short numbers, which are not packed here, and the checksum."""
    ours = dump(restored(payload, ms), ms)
    assert ours[0] == payload[0]
    # From the number of entries on, behind the node: `06 81 …`.
    behind = b"\x06\x81" + ms.to_bytes(8, "big")
    theirs = re.sub(rb"\xc0(.)(?=\x81)", lambda found: b"\x01%d" % found[1][0], payload[payload.index(behind) : -8])
    assert ours[ours.index(behind) : -8] == theirs


@SAMPLES
def test_expired_producers_are_not_restored(payload: bytes, ms: int) -> None:
    """Sixty seconds after the time in its entry's id: not when it is restored then, nor when it is dumped then."""
    stream = restored(payload, ms + 59_999)
    assert stream.idempotence.tracked() == 5
    assert restored(payload, ms + 60_000).idempotence.producers == {}
    late = restored(dump(stream, ms + 60_000), ms).idempotence
    assert (late.producers, late.duration, late.added, late.duplicates) == ({}, 60, 6, 2)


def test_the_hash_of_idmpauto_is_redis_own() -> None:
    """These were made by Redis 8.6: short and long, in any order of the fields, and with empty ones."""
    for pairs, digest in [
        ([b"f", b"1", b"g", b"2"], "2ac518c21b510f648ec36be1e4e2fb02"),
        ([b"g", b"2", b"f", b"1"], "2ac518c21b510f648ec36be1e4e2fb02"),
        ([b"27530394", b"890046123"], "a03ab15a3b54edfce756666a8b5a23e0"),
        ([b"", b""], "1a9f7ebbaea1d61d30b6b8daa3e38da7"),
        ([b"a", b"x" * 17], "41f2fdd09bf7c2882b1c4ea8d66be52f"),
        ([b"b" * 16, b"x" * 130], "5047ed2c2560051ecc68db9da238eff1"),
        ([b"name", b"z" * 300, b"n", b"1", b"name", b"z" * 300], "3a90cee5fbcbae84cc91651259653e9a"),
        ([b"long" * 100, b"q" * 3000, b"k", b""], "bec7faf3bfdf2a2acbd8d5b4003ae782"),
    ]:
        assert message_of(pairs).hex() == digest


def test_the_oldest_format_that_loses_nothing() -> None:
    """Redis 7.0's; 8.6's where messages are remembered, or are to be for longer; 8.8's where entries are released."""
    inside = Inside()

    def kind() -> int:
        return int(inside.call("DUMP", "s")[0])

    inside.call("XADD", "s", "1-1", "a", 1)
    inside.call("XGROUP", "CREATE", "s", "g", 0)
    inside.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    assert kind() == STREAM_2
    inside.call("XCFGSET", "s", "IDMP-DURATION", 7)
    assert kind() == STREAM_4
    inside.call("XCFGSET", "s", "IDMP-DURATION", 100)
    assert kind() == STREAM_2
    inside.call("XADD", "s", "IDMP", "p", "1", "*", "a", 1)
    assert kind() == STREAM_4
    inside.call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-1")
    assert kind() == STREAM_5


def test_an_older_redis_says_no(redis_server: Server) -> None:
    """Rather than taking it without what was remembered."""
    inside = Inside()
    inside.call("XADD", "s", "IDMP", "p", "1", "*", "a", 1)
    with wire(redis_server) as redis:
        redis.call("FLUSHALL")
        version = tuple(map(int, redis.call("HELLO")[3].split(b".")))
        reply = redis.call("RESTORE", "s", 0, inside.call("DUMP", "s"))
        refused = Failed("ERR DUMP payload version or checksum are wrong")
        assert reply == (b"OK" if version >= (8, 6) else refused)


def test_a_reload_and_the_file_keep_all_of_it(tmp_path: Path) -> None:
    """What is released and what is remembered, with when consumers were last active."""
    inside = Inside(tmp_path)
    for number in range(1, 4):
        inside.call("XADD", "s", "IDMP", "p", f"m{number}", "*", "a", 1)
    inside.call("XGROUP", "CREATE", "s", "g", "0")
    inside.call("XGROUP", "CREATECONSUMER", "s", "g", "new")
    ids = [one[0] for one in inside.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")[0][1]]
    assert inside.call("XNACK", "s", "g", "FAIL", "IDS", 2, *ids[:2]) == 2

    def states() -> list[Any]:
        consumers = [one[-1] == -1 for one in inside.call("XINFO", "CONSUMERS", "s", "g")]
        nacked = inside.call("XINFO", "STREAM", "s", "FULL")[-1][0][8:12]
        return [state(inside.call), inside.call("XINFO", "STREAM", "s")[14:26], consumers, nacked]

    before = states()
    assert before[2] == [False, True]
    assert inside.call("DEBUG", "RELOAD") == b"OK"
    assert states() == before
    for number in range(1, 4):
        assert inside.call("XADD", "s", "IDMP", "p", f"m{number}", "*", "a", 2) == ids[number - 1]
    assert inside.call("DEBUG", "LOADAOF") == b"OK"
    for number in range(1, 4):
        assert inside.call("XADD", "s", "IDMP", "p", f"m{number}", "*", "a", 2) == ids[number - 1]
    assert inside.call("XPENDING", "s", "g")[3] == [[b"ann", b"1"]]
    inside.stop()


def test_a_message_that_ran_out_and_came_again_is_read_back(tmp_path: Path) -> None:
    """The file says both times what it became; the later one counts, and the file is no damaged one."""
    now = [1_800_000_000_000]
    inside = Inside(tmp_path, clock=lambda: now[0])
    inside.call("XADD", "s", "1-1", "a", 0)
    inside.call("XCFGSET", "s", "IDMP-DURATION", 1, "IDMP-MAXSIZE", 2)
    first = inside.call("XADD", "s", "IDMP", "p", "x", "*", "a", 1)
    now[0] += 1_500
    second = inside.call("XADD", "s", "IDMP", "p", "x", "*", "a", 2)
    assert first != second
    inside.stop()
    again = Inside(tmp_path, clock=lambda: now[0])
    assert again.call("XADD", "s", "IDMP", "p", "x", "*", "a", 3) == second
    assert again.call("XLEN", "s") == 3
    again.stop()


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (b"\x3c\x03\x03\x04auto", b"\x00\x03\x03\x04auto", "limits"),
        (b"\x3c\x03\x03\x04auto", b"\x3c\x00\x03\x04auto", "limits"),
        (b"\x01q\x01\xc0\x01", b"\x01p\x01\xc0\x01", "twice"),
    ],
)
def test_bounds_and_producers_are_checked(here: bytes, there: bytes, reason: str) -> None:
    """As Redis checks them."""
    assert REDIS_8_6.count(here) == 1
    broken = REDIS_8_6.replace(here, there)[:-8] + bytes(8)  # no checksum
    with pytest.raises(BadDataError, match=reason):
        load(broken, LIMITS, 0)
