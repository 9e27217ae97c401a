# ruff: noqa: E501 - a reply is shown on one line
"""What Redis' streams can do since 8.2, by its documentation and its own tests: replies of the bundled engine.

The rows up to 8.6 were checked against a Redis 8.6.3; random commands are compared with whatever server is at hand
(test_against_redis.py).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.persistence.test_append_only import rewrite
from tests.engine.state import Inside
from tests.engine.wire import Failed, Wire, wait_blocked, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Server

BAD_ID = Failed("ERR Invalid stream ID specified as stream command argument")
SYNTAX = Failed("ERR syntax error")
WRONGTYPE = Failed("WRONGTYPE Operation against a key holding the wrong kind of value")
NUMIDS = Failed("ERR The `numids` parameter must match the number of arguments")
POSITIVE = Failed("ERR Number of IDs must be a positive integer")
ONLY_AUTO = Failed("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
NOGROUP = Failed("NOGROUP No such key 's' or consumer group 'no'")
FATAL = 2**63 - 1

Rows = list[tuple[str, Any]]

REMOVING: Rows = [
    ("SET text x", b"OK"),
    ("XDELEX s IDS 1 1-1", [-1]),
    ("XACKDEL s g ACKED IDS 2 1-1 x", [-1, -1]),
    ("XDELEX text IDS 1 1-1", WRONGTYPE),
    ("XDELEX s IDS 0 1-1", POSITIVE),
    ("XDELEX s IDS x 1-1", POSITIVE),
    ("XDELEX s IDS 2 1-1", NUMIDS),
    ("XDELEX s IDS 1 1-1 2-1", SYNTAX),
    ("XDELEX s KEEPREF DELREF IDS 1 1-1", SYNTAX),
    ("XDELEX s KEEPREF KEEPREF KEEPREF", SYNTAX),
    ("XADD s 1-1 a 1", b"1-1"),
    ("XADD s 2-1 a 2", b"2-1"),
    ("XADD s 3-1 a 3", b"3-1"),
    ("XADD s 4-1 a 4", b"4-1"),
    ("XDELEX s IDS 1 x", BAD_ID),
    ("XACKDEL s no IDS 1 x", [-1]),
    ("XGROUP CREATE s g 0", b"OK"),
    ("XGROUP CREATE s h 0", b"OK"),
    # Not yet delivered, or not even there, and so referred to; then pending; then acknowledged by both groups.
    ("XDELEX s ACKED IDS 2 1-1 9-9", [2, 2]),
    ("XREADGROUP GROUP g c COUNT 3 STREAMS s >", [[b"s", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in (1, 2, 3)]]]),
    ("XGROUP SETID s h 3-1", b"OK"),
    ("XDELEX s ACKED IDS 2 1-1 2-2", [2, -1]),
    ("XACK s g 1-1", 1),
    ("XDELEX s ACKED IDS 2 1-1 1-1", [1, -1]),
    ("XDELEX s KEEPREF IDS 1 2-1", [1]),
    ("XPENDING s g", [2, b"2-1", b"3-1", [[b"c", b"2"]]]),
    # What is pending of an entry that is gone still counts as a reference.
    ("XDELEX s ACKED IDS 1 2-1", [2]),
    ("XDELEX s DELREF IDS 2 2-1 3-1", [-1, 1]),
    ("XPENDING s g", [0, None, None, None]),
    ("XREADGROUP GROUP g c STREAMS s >", [[b"s", [[b"4-1", [b"a", b"4"]]]]]),
    ("XREADGROUP GROUP h c STREAMS s >", [[b"s", [[b"4-1", [b"a", b"4"]]]]]),
    ("XACKDEL s g ACKED IDS 3 4-1 4-1 x", BAD_ID),
    ("XACKDEL s g ACKED IDS 2 4-1 4-1", [2, -1]),
    ("XACKDEL s h IDS 1 4-1 ACKED", [1]),
    ("XLEN s", 0),
]

TRIMMING: Rows = [
    *((f"XADD s {n}-1 a {n}", b"%d-1" % n) for n in range(1, 9)),
    ("XGROUP CREATE s g 0", b"OK"),
    ("XTRIM s MAXLEN 0 ACKED", 0),
    (
        "XREADGROUP GROUP g c COUNT 4 NOACK STREAMS s >",
        [[b"s", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in range(1, 5)]]],
    ),
    ("XREADGROUP GROUP g c COUNT 2 STREAMS s >", [[b"s", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in (5, 6)]]]),
    ("XTRIM s ACKED MINID 3", 2),
    ("XTRIM s KEEPREF ACKED MAXLEN 0", SYNTAX),
    ("XTRIM s MAXLEN 3 ACKED", 2),
    ("XACK s g 5-1", 1),
    ("XADD s ACKED MAXLEN ~ 1 9-1 a 9", b"9-1"),
    ("XRANGE s - +", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in range(6, 10)]),
    ("XTRIM s DELREF MAXLEN = 1", 3),
    ("XPENDING s g", [0, None, None, None]),
]

IDEMPOTENT: Rows = [
    ("XADD s 9999999999999-0 a 0", b"9999999999999-0"),
    ("XADD s IDMP p 1 * a 1", b"9999999999999-1"),
    ("XADD s IDMP p 1 * a 2", b"9999999999999-1"),
    ("XADD s IDMP q 1 * a 1", b"9999999999999-2"),
    ("XADD s IDMPAUTO p * a 1 b 2", b"9999999999999-3"),
    ("XADD s IDMPAUTO p MAXLEN 0 * b 2 a 1", b"9999999999999-3"),
    ("XADD s IDMPAUTO p * a 2 b 1", b"9999999999999-4"),
    ("XADD s IDMP p 1 5-5 a 1", ONLY_AUTO),
    ("XADD s IDMP p 1 5-* a 1", ONLY_AUTO),
    ("XADD s IDMP p 1 IDMPAUTO p * a 1", Failed("ERR syntax error, IDMP/IDMPAUTO specified multiple times")),
    ("XADD none NOMKSTREAM IDMP p 1 * a 1", None),
    ("XIDMPRECORD s p 1 9999999999999-1", b"OK"),
    (
        "XIDMPRECORD s p 1 9999999999999-2",
        Failed("ERR IID already exists for this producer with a different stream ID"),
    ),
    ("XIDMPRECORD s p 2 9999999999999-9", Failed("ERR No such message in stream")),
    ("XIDMPRECORD none p 2 1-1", Failed("ERR no such key")),
    ("XIDMPRECORD none p 2 x", BAD_ID),
    ("XIDMPRECORD s r 2 9999999999999-2", b"OK"),
    ("XADD s IDMP r 2 * a 1", b"9999999999999-2"),
    ("XCFGSET s", Failed("ERR At least one parameter must be specified")),
    ("XCFGSET none IDMP-MAXSIZE x", Failed("ERR no such key")),
    ("XCFGSET s IDMP-MAXSIZE 0", Failed("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")),
    ("XCFGSET s IDMP-DURATION 86401", Failed("ERR IDMP-DURATION must be between 1 and 86400 seconds")),
    ("XCFGSET s IDMP-DURATION 5 IDMP-DURATION 5", Failed("ERR IDMP-DURATION specified multiple times")),
    ("XCFGSET s IDMP-DURATION", SYNTAX),
    ("XCFGSET s IDMP-DURATION 100", b"OK"),
    ("XADD s IDMP p 1 * a 1", b"9999999999999-1"),
    # A change forgets everything; then one message of each producer is remembered.
    ("XCFGSET s IDMP-MAXSIZE 1", b"OK"),
    ("XADD s IDMP p 1 * a 1", b"9999999999999-5"),
    ("XADD s IDMP p 2 * a 1", b"9999999999999-6"),
    ("XADD s IDMP p 1 * a 1", b"9999999999999-7"),
]

CLAIMING: Rows = [
    *((f"XADD s {n}-1 a {n}", b"%d-1" % n) for n in (1, 2, 3, 4)),
    ("XGROUP CREATE s g 0", b"OK"),
    ("XREADGROUP GROUP g ann COUNT 2 STREAMS s >", [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]]]),
    ("XCLAIM s g ann 0 2-1 TIME 1000 JUSTID", [b"2-1"]),
    ("XREADGROUP GROUP g bob CLAIM -1 STREAMS s >", Failed("ERR min-idle-time must be a positive integer")),
    ("XREADGROUP GROUP g bob CLAIM x STREAMS s >", Failed("ERR min-idle-time is not an integer or out of range")),
    (
        "XREAD CLAIM 0 STREAMS s 0",
        Failed("ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead."),
    ),
    # The longest idle first, and new entries behind, all within COUNT.
    (
        "XREADGROUP GROUP g bob COUNT 2 CLAIM 60000 STREAMS s >",
        [[b"s", [[b"2-1", [b"a", b"2"], "idle", 1], [b"3-1", [b"a", b"3"], 0, 0]]]],
    ),
    ("XPENDING s g - + 9", [[b"1-1", b"ann", 0, 1], [b"2-1", b"bob", 0, 2], [b"3-1", b"bob", 0, 1]]),
    ("XREADGROUP GROUP g bob CLAIM 60000 STREAMS s 0", [[b"s", [[b"2-1", [b"a", b"2"]], [b"3-1", [b"a", b"3"]]]]]),
    ("XREADGROUP GROUP g eve CLAIM 60000 NOACK STREAMS s >", [[b"s", [[b"4-1", [b"a", b"4"], 0, 0]]]]),
    ("XREADGROUP GROUP g eve CLAIM 60000 STREAMS s >", None),
    ("XDEL s 1-1", 1),
    ("XCLAIM s g eve 0 3-1 IDLE 70000 RETRYCOUNT 9", [[b"3-1", [b"a", b"3"]]]),
    ("XREADGROUP GROUP g eve CLAIM 60000 STREAMS s >", [[b"s", [[b"3-1", [b"a", b"3"], "idle", 9]]]]),
]

RELEASING: Rows = [
    *((f"XADD s {n}-1 a {n}", b"%d-1" % n) for n in (1, 2, 3, 4, 5)),
    ("XGROUP CREATE s g 0", b"OK"),
    ("XNACK s no FAIL IDS 1 1-1", NOGROUP),
    ("XNACK s g BAD IDS 1 1-1", Failed("ERR mode must be SILENT, FAIL, or FATAL")),
    ("XNACK s g FAIL IDS 0 1-1", Failed("ERR numids must be a positive integer")),
    ("XNACK s g FAIL IDS 2 1-1", Failed("ERR number of IDs doesn't match numids")),
    ("XNACK s g FAIL FORCE FORCE FORCE", Failed("ERR syntax error, expected IDS keyword")),
    ("XNACK s g FAIL IDS 1 1-1 MAYBE", Failed("ERR Unrecognized XNACK option 'MAYBE'")),
    ("XNACK s g FAIL IDS 1 1-1 RETRYCOUNT -1", Failed("ERR Invalid RETRYCOUNT value, must be >= 0")),
    ("XNACK s g FAIL IDS 1 x", BAD_ID),
    ("XNACK s g FAIL IDS 1 1-1", 0),
    ("XREADGROUP GROUP g ann COUNT 4 STREAMS s >", [[b"s", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in (1, 2, 3, 4)]]]),
    ("XNACK s g SILENT IDS 1 3-1", 1),
    ("XNACK s g FAIL IDS 1 2-1", 1),
    ("XNACK s g FATAL IDS 2 4-1 9-9", 1),
    ("XNACK s g FAIL IDS 2 5-1 9-9 FORCE RETRYCOUNT 7", 1),
    # Released entries have no consumer and are idle since -1; the summary counts them for nobody.
    ("XPENDING s g", [5, b"1-1", b"5-1", [[b"ann", b"1"]]]),
    ("XPENDING s g IDLE 60000 - + 9",
     [[b"2-1", b"", -1, 1], [b"3-1", b"", -1, 0], [b"4-1", b"", -1, FATAL], [b"5-1", b"", -1, 7]]),
    ("XPENDING s g - + 9 ann", [[b"1-1", b"ann", 0, 1]]),
    ("XREADGROUP GROUP g bob STREAMS s 0", [[b"s", []]]),
    # They are claimed first, in the order in which they were released, however long min-idle is.
    ("XREADGROUP GROUP g bob COUNT 3 CLAIM 60000 STREAMS s >",
     [[b"s", [[b"3-1", [b"a", b"3"], "idle", 0], [b"2-1", [b"a", b"2"], "idle", 1], [b"4-1", [b"a", b"4"], "idle", FATAL]]]]),
    ("XPENDING s g 4 5 9", [[b"4-1", b"bob", 0, FATAL], [b"5-1", b"", -1, 7]]),
    ("XNACK s g FAIL IDS 1 2-1", 1),
    ("XCLAIM s g eve 60000 2-1 1-1 JUSTID", [b"2-1"]),
    ("XAUTOCLAIM s g eve 60000 0", [b"0-0", [[b"5-1", [b"a", b"5"]]], []]),
    ("XNACK s g FAIL IDS 1 5-1", 1),
    ("XACK s g 5-1", 1),
]  # fmt: skip

LIMITING: Rows = [
    *((f"XADD {key} {n}-1 a {n}", b"%d-1" % n) for key in "st" for n in (1, 2, 3)),
    ("XREAD MAXCOUNT 0 STREAMS s 0", Failed("ERR MAXCOUNT must be a positive integer")),
    ("XREAD MAXSIZE 0 STREAMS s 0", Failed("ERR MAXSIZE must be a positive integer")),
    ("XREAD MAXSIZE x STREAMS s 0", Failed("ERR value is not an integer or out of range")),
    ("XREAD COUNT 3 MAXCOUNT 2 STREAMS s 0", Failed("ERR MAXCOUNT must be greater than or equal to COUNT")),
    ("XREAD COUNT 2 MAXCOUNT 3 STREAMS s t 0 0",
     [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]], [b"t", [[b"1-1", [b"a", b"1"]]]]]),
    ("XREAD MAXCOUNT 3 STREAMS s t 0 0", [[b"s", [[b"%d-1" % n, [b"a", b"%d" % n]] for n in (1, 2, 3)]]]),
    ("XREAD MAXCOUNT 3 STREAMS none 0", None),
    # One entry goes in however big it is: `*2 s` takes 11 bytes, an entry 31.
    ("XREAD MAXSIZE 1 STREAMS s t 0 0", [[b"s", [[b"1-1", [b"a", b"1"]]]]]),
    ("XREAD MAXSIZE 42 STREAMS s t 0 0", [[b"s", [[b"1-1", [b"a", b"1"]]]]]),
    ("XREAD MAXSIZE 43 STREAMS s t 0 0", [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]]]),
    # The next stream's name may be what fills the reply.
    ("XREAD COUNT 1 MAXSIZE 47 STREAMS s t 0 0", [[b"s", [[b"1-1", [b"a", b"1"]]]], [b"t", []]]),
    ("XGROUP CREATE s g 0", b"OK"),
    ("XGROUP CREATE t g 0", b"OK"),
    ("XREADGROUP GROUP g c MAXSIZE 43 STREAMS s t > >", [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]]]),
    ("XPENDING s g", [2, b"1-1", b"2-1", [[b"c", b"2"]]]),
    ("XREADGROUP GROUP g d MAXCOUNT 2 CLAIM 0 STREAMS s t > >",
     [[b"s", [[b"1-1", [b"a", b"1"], "idle", 1], [b"2-1", [b"a", b"2"], "idle", 1]]]]),
    ("XREADGROUP GROUP g d MAXCOUNT 2 STREAMS t s > >", [[b"t", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]]]),
    ("XREADGROUP GROUP g d MAXCOUNT 3 STREAMS s t 0 0",
     [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"a", b"2"]]]], [b"t", [[b"1-1", [b"a", b"1"]]]]]),
    ("XREADGROUP GROUP g d MAXSIZE 1 STREAMS s t 0 0", [[b"s", [[b"1-1", [b"a", b"1"]]]]]),
]  # fmt: skip

LATER: Rows = [
    ("XREAD STREAMS s 0 x",
     Failed("ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.")),
    ("XREADGROUP GROUP g c STREAMS s > >",
     Failed("ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.")),
    ("XADD s 5-5 a 1", b"5-5"),
    ("XDEL s 5-5", 1),
    ("XSETID s 4-4", Failed("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")),
    ("XGROUP CREATE s g 0 ENTRIESREAD 99", b"OK"),
    ("XINFO GROUPS s", [[b"name", b"g", b"consumers", 0, b"pending", 0, b"last-delivered-id", b"0-0", b"entries-read", 1,
                         b"lag", 0]]),
    ("XCLAIM s g new 0 1-1", []),
    ("XINFO CONSUMERS s g", [[b"name", b"new", b"pending", 0, b"idle", 0, b"inactive", -1]]),
    ("CONFIG SET stream-idmp-maxsize 10001",
     Failed("ERR CONFIG SET failed (possibly related to argument 'stream-idmp-maxsize') - argument must be between 1 and "
            "10000 inclusive")),
]  # fmt: skip


def roughly(reply: Any, expected: Any) -> Any:
    """The reply, with "idle" where that is expected of a great number, and 0 for a small idle time."""
    if isinstance(reply, list) and isinstance(expected, list) and len(reply) == len(expected):
        return [roughly(one, two) for one, two in zip(reply, expected, strict=True)]
    if expected == "idle" and isinstance(reply, int):
        return "idle"
    return 0 if expected == 0 and isinstance(reply, int) and 0 <= reply < 5000 else reply


@pytest.mark.parametrize(
    "rows", [REMOVING, TRIMMING, IDEMPOTENT, CLAIMING, RELEASING, LIMITING, LATER],
    ids=["removing", "trimming", "idempotent", "claiming", "releasing", "limiting", "later"],
)  # fmt: skip
def test_replies_of_newer_commands(engine_server: Server, rows: Rows) -> None:
    """XDELEX, XACKDEL, reference policies, IDMP, CLAIM, XNACK, MAXCOUNT and MAXSIZE, in order, from an empty server."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        for text, expected in rows:
            reply = client.call(*text.split())
            if expected != 0 or text.split()[0] not in ("XLEN", "XTRIM", "XNACK"):
                reply = roughly(reply, expected)
            assert (type(reply), reply) == (type(expected), expected), text


def test_xinfo_tells_what_is_remembered_and_released(engine_server: Server) -> None:
    """The fields of 8.6 in XINFO STREAM, nacked-count of 8.8 in its full form."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("XADD", "s", "9999999999999-0", "a", "0")
        for message in ("1", "2", "1"):
            client.call("XADD", "s", "IDMP", "p", message, "*", "a", "1")
        info = client.call("XINFO", "STREAM", "s")
        assert info[14:26] == [b"idmp-duration", 100, b"idmp-maxsize", 100, b"pids-tracked", 1, b"iids-tracked", 2,
                               b"iids-added", 2, b"iids-duplicates", 1]  # fmt: skip
        client.call("XGROUP", "CREATE", "s", "g", "0")
        client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        client.call("XNACK", "s", "g", "FAIL", "IDS", "2", "9999999999999-0", "9999999999999-2")
        (group,) = client.call("XINFO", "STREAM", "s", "FULL")[-1]
        assert group[8:14:2] == [b"pel-count", b"nacked-count", b"pending"]
        assert group[9:13:2] == [3, 2]
        assert [entry[1:3] == [b"", 0] for entry in group[13]] == [True, False, True]


def test_what_is_remembered_runs_out(engine_server: Server) -> None:
    """A second after the time in its entry's id, a message of a stream with IDMP-DURATION 1 is new again."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("XADD", "s", "1-1", "a", "0")
        client.call("XCFGSET", "s", "IDMP-DURATION", "1")
        first = client.call("XADD", "s", "IDMP", "p", "1", "*", "a", "1")
        assert client.call("XADD", "s", "IDMP", "p", "1", "*", "a", "1") == first
        time.sleep(1.15)
        assert client.call("XADD", "s", "IDMP", "p", "1", "*", "a", "1") != first
        assert client.call("XLEN", "s") == 3


def test_a_new_stream_takes_its_bounds_from_the_configuration(engine_server: Server) -> None:
    """stream-idmp-duration and stream-idmp-maxsize are of streams made afterwards."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("XADD", "old", "1-1", "a", "1")
        client.call("CONFIG", "SET", "stream-idmp-duration", "7", "stream-idmp-maxsize", "8")
        client.call("XADD", "new", "1-1", "a", "1")
        client.call("CONFIG", "SET", "stream-idmp-duration", "100", "stream-idmp-maxsize", "100")
        assert [client.call("XINFO", "STREAM", key)[15:18:2] for key in ("old", "new")] == [[100, 100], [7, 8]]


def blocked_claim(stack: ExitStack, server: Server, idle: int) -> tuple[Wire, Wire]:
    """A client with an entry pending for `ann`, and a reader that waits to claim."""
    client, reader = stack.enter_context(wire(server)), stack.enter_context(wire(server))
    client.call("FLUSHALL")
    client.call("XADD", "s", "1-1", "a", "1")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    reader.send("XREADGROUP", "GROUP", "g", "bob", "BLOCK", "0", "CLAIM", str(idle), "STREAMS", "s", ">")
    wait_blocked(client, 1)
    return client, reader


def test_a_blocked_reader_claims_what_has_become_old_enough(engine_server: Server) -> None:
    """XREADGROUP BLOCK CLAIM wakes when an entry has been idle for long enough, though nothing happens."""
    with ExitStack() as stack:
        client, reader = blocked_claim(stack, engine_server, 200)
        begun = machine_seconds()
        ((key, ((one, _, idle, deliveries),)),) = reader.reply()
        assert (key, one, deliveries) == (b"s", b"1-1", 1)
        assert 200 <= idle < 30_000
        assert machine_seconds() - begun < 1
        assert client.call("XPENDING", "s", "g")[3] == [[b"bob", b"1"]]


def test_a_blocked_reader_claims_what_is_released(engine_server: Server) -> None:
    """XNACK wakes a reader that waits with CLAIM."""
    with ExitStack() as stack:
        client, reader = blocked_claim(stack, engine_server, 100_000)
        assert client.call("XNACK", "s", "g", "SILENT", "IDS", "1", "1-1") == 1
        assert reader.reply()[0][1][0][3] == 0


def test_a_woken_reader_gets_all_there_is(engine_server: Server) -> None:
    """From 7.2 on a blocked reader without COUNT gets everything that a transaction has added (7.0: a thousand)."""
    with wire(engine_server) as client, wire(engine_server) as reader:
        client.call("FLUSHALL")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 1)
        client.call("MULTI")
        for number in range(1, 1202):
            client.call("XADD", "s", f"{number}-1", "a", "1")
        client.call("EXEC")
        assert len(reader.reply()[0][1]) == 1201


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("XGROUP DESTROY s g", "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"),
        ("DEL s", "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"),
        ("SET s x", str(WRONGTYPE)),
    ],
)
def test_errors_for_a_blocked_group_reader(engine_server: Server, ending: str, error: str) -> None:
    """From 7.2 on the command is tried again, and fails as it would have failed at once."""
    with wire(engine_server) as client, wire(engine_server) as reader:
        client.call("FLUSHALL")
        client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        wait_blocked(client, 1)
        client.call(*ending.split())
        assert reader.reply() == error


def test_the_version_is_that_of_the_stream_commands(engine_server: Server) -> None:
    """INFO and HELLO agree, and say what the number is about."""
    with wire(engine_server) as client:
        info = client.call("INFO", "server").decode()
        assert "redis_version:8.10.0\r\n" in info
        assert "rstream_version:" in info
        assert "rstream_emulates:streams of redis_version" in info
        hello = client.call("HELLO")
        assert hello[hello.index(b"version") + 1] == b"8.10.0"


def test_newer_state_survives_a_restart_and_a_rewrite(tmp_path: Path) -> None:
    """What XNACK released, what idempotent adds remember, what ACKED trimming left."""
    inside = Inside(tmp_path)
    for text in (
        "XADD s 9999999999999-0 a 0", "XADD s IDMP p 1 * a 1", "XADD s IDMP p 2 * a 2", "XADD s IDMP q 1 MAXLEN 3 * a 3",
        "XGROUP CREATE s g 0", "XREADGROUP GROUP g ann COUNT 2 STREAMS s >", "XNACK s g FATAL IDS 1 9999999999999-2",
        "XREADGROUP GROUP g bob CLAIM 5 COUNT 1 STREAMS s >", "XNACK s g SILENT IDS 1 9999999999999-1",
        "XACK s g 9999999999999-2", "XADD s ACKED MAXLEN 1 * a 4", "XCFGSET t IDMP-MAXSIZE 7", "XADD t 1-1 a 1",
        "XCFGSET t IDMP-MAXSIZE 7",
    ):  # fmt: skip
        inside.call(*text.split())

    def replies(call: Any) -> Any:
        pending = call("XPENDING", "s", "g", "-", "+", "9")
        info = [call("XINFO", "STREAM", key)[14:22] for key in ("s", "t")]
        nacked = call("XINFO", "STREAM", "s", "FULL")[-1][0][8:12]
        return call("XRANGE", "s", "-", "+"), pending, info, nacked

    before = replies(inside.call)
    assert before[1] == [[b"9999999999999-1", b"", -1, 0]]
    for rewritten in (False, True):
        if rewritten:
            rewrite(inside)
        inside.stop()
        inside = Inside(tmp_path)
        assert replies(inside.call) == before
        assert inside.call("XADD", "s", "IDMP", "p", "2", "*", "a", "2") == b"9999999999999-2"
    inside.stop()


def test_a_copy_has_what_is_released(engine_server: Server) -> None:
    """COPY takes it along, and nothing of the first stream is shared."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        for text in (
            "XADD s 1-1 a 1", "XADD s 2-1 a 2", "XGROUP CREATE s g 0", "XREADGROUP GROUP g ann STREAMS s >",
            "XNACK s g FATAL IDS 1 1-1",
        ):  # fmt: skip
            client.call(*text.split())
        assert client.call("COPY", "s", "t") == 1
        assert client.call("XPENDING", "t", "g", "-", "+", "1") == [[b"1-1", b"", -1, FATAL]]
        assert client.call("XACK", "t", "g", "1-1", "2-1") == 2
        assert client.call("XPENDING", "s", "g", "-", "+", "1") == [[b"1-1", b"", -1, FATAL]]
