"""What clients need around the streams: strings, lists, keys between databases, client commands, what is refused."""

from __future__ import annotations

import time

import pytest

from spark_streams.operations.doctor.rights import USES, commands_of
from tests.engine.judge import Judge
from tests.engine.wire import wait_blocked, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Server

# Sent in this order to both servers, which must answer with the same bytes.
SAME = """
SET a 1 NX | SET a 2 NX | GET a | SET a x EX 100 | TTL a | SET a x EX 0 | SET a x EX x | SET a y PX 100000 | PTTL none
SET a y PX -1 | SET a x EX 9223372036854775807 | SET b n | APPEND b ew | APPEND b | GET b
SET n 10 | DECRBY n 3 | DECRBY n x | DECRBY n -9223372036854775808 | GETRANGE b 0 1 | GETRANGE b -2 -1 | GETRANGE b 5 1
GETRANGE none 0 -1 | MSET k1 1 k2 2 | MSET k3 | MGET k1 k2 k3
LPUSH l e d c b a | LPUSH l z y | LRANGE l 0 -1 | LRANGE l -2 9 | LRANGE l x 1
LPOP l | LPOP l 2 | LPOP l 0 | LRANGE l 0 -1 | LPOP l -1 | LPOP l x | LPOP l 9 | EXISTS l | LPOP l
LPOP l 1 | LPOP l 1 2 | LPUSH l a | LPUSH l b c | LRANGE l 0 -1
BLPOP l 0 | BLPOP none l 0 | BLPOP l -1 | BLPOP l x | BLPOP l nan | BLPOP l inf | BLPOP l 1e308
BLPOP l | BLPOP n 0 | BLPOP none 0.01
SET n 1 | LPUSH n a | LPOP n | LRANGE n 0 1 | MULTI | BLPOP none 0 | EXEC
XADD s 1-1 a 1 | XGROUP CREATE s g 0 | XREADGROUP GROUP g c STREAMS s > | XADD s 2-1 b 2 | XADD s 3-1 c 3 | XDEL s 2-1
COPY s s | COPY s t | COPY s t | COPY s t REPLACE | COPY s n | COPY none t | COPY s t DB 1 | COPY s t DB 99
COPY s t BAD
COPY s t DB x | XRANGE t - + | XPENDING t g | XINFO GROUPS t | XACK t g 1-1 | XPENDING s g | XADD t 4-1 d 4 | XLEN s
XREADGROUP GROUP g c2 STREAMS t > | XINFO GROUPS s | XTRIM s MAXLEN 0 | XRANGE t - + | SELECT 1 | XLEN t | XPENDING t g
SELECT 0 | SWAPDB 0 1 | XLEN t | EXISTS n | SWAPDB 1 0 | EXISTS n | SWAPDB 0 99 | SWAPDB x 0 | SWAPDB 0 x | SWAPDB 2 2
EXPIRE n 100 | EXPIREAT n 33177117420 | EXPIRETIME n | PEXPIRETIME n | EXPIRETIME none | EXPIRETIME b
OBJECT ENCODING none
SCAN 18446744073709551616 | HSCAN h 18446744073709551615 | HSCAN h 99999999999999999999
HSETNX h a 1 | HSETNX h a 2 | HSETNX h | SADD t2 a b
CLIENT KILL ID 0 | CLIENT KILL ID x | CLIENT KILL TYPE bad | CLIENT KILL USER nobody | CLIENT KILL 1.2.3.4:5
CLIENT KILL ID 999999 | CLIENT KILL TYPE pubsub | CLIENT KILL ADDR | CLIENT LIST TYPE bad | CLIENT LIST TYPE replica
CLIENT LIST ID x | CLIENT UNBLOCK 999999 | CLIENT UNBLOCK 1 BAD
FUNCTION FLUSH | FUNCTION FLUSH ASYNC | SCRIPT FLUSH | MODULE LIST
ROLE | ROLE x | ACL WHOAMI | CLUSTER INFO | MEMORY USAGE none | MEMORY USAGE n BAD 1
READONLY | READWRITE | ASKING | ASKING x | WAIT 0 0 | WAIT x 0 | WAIT 0 -1 | SHUTDOWN BAD | CONFIG SET | CONFIG BAD
FLUSHALL
"""


# By server: what it answers otherwise than the newest Redis does.
OLDER = {"BLPOP l inf", "BLPOP l 1e308"}  # before 7.2: negative
VALKEY = {"CLIENT KILL ID x", "CLIENT LIST ID x"}  # a syntax error
OF_THE_BUILD = "MODULE LIST"  # modules that the server was built with


def test_the_same_bytes_as_redis(engine_server: Server, redis_server: Server) -> None:
    """Each of these commands, error texts included."""
    with wire(engine_server) as engine, wire(redis_server) as redis:
        judge = Judge(redis)
        other = {OF_THE_BUILD} | (OLDER if judge.version < (7, 2) else set()) | (VALKEY if judge.valkey else set())
        for client in (engine, redis):
            client.call("FLUSHALL")
        for line in SAME.strip().replace("\n", " | ").split(" | "):
            words = line.split()
            same = engine.raw(*words) == redis.raw(*words)
            assert same or line in other, line


def test_a_cursor_behind_everything_is_the_end(engine_server: Server) -> None:
    with wire(engine_server) as client:
        client.call("HSET", "h", "a", 1)
        for words in (("SCAN",), ("HSCAN", "h")):
            assert client.call(*words, 2**64 - 1) == [b"0", []]
            assert client.call(*words, 2**64) == "ERR invalid cursor"


REFUSED = [
    *("EVAL_RO x 0", "EVALSHA_RO x 0", "FCALL f 0", "SUBSCRIBE c", "PUBLISH c m", "ZADD z 1 a", "MONITOR", "PFADD h a"),
    *("RPUSH l a", "STRLEN k", "SETEX k 1 x", "HMSET h a 1", "SCARD s", "TOUCH k", "SLOWLOG GET"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_here_is_refused_by_name(engine_server: Server, text: str) -> None:
    """As an unknown command, for clients, and with the reason, for people; the connection goes on."""
    with wire(engine_server) as client:
        name = text.split(maxsplit=1)[0]
        assert client.call(*text.split()).startswith(f"ERR unknown command '{name}' (not in this engine: it ")
        assert client.call("PING") == b"PONG"


@pytest.mark.parametrize(
    "text", ["CLIENT PAUSE 100", "CLIENT TRACKING ON", "OBJECT IDLETIME k", "MEMORY STATS", "ACL CAT"]
)
def test_a_subcommand_that_is_not_here_is_refused_by_name(engine_server: Server, text: str) -> None:
    with wire(engine_server) as client:
        container, name = text.split()[:2]
        assert client.call(*text.split()) == f"ERR unknown subcommand '{name}'. Try {container} HELP."


def test_readers_of_lists_and_streams_wait_in_one_queue(server: Server) -> None:
    """First come, first served, whatever they wait for; a key of the other type wakes nobody."""
    with wire(server) as writer, wire(server) as one, wire(server) as two, wire(server) as stream, wire(server) as last:
        one.send("BLPOP", "k", "0")
        wait_blocked(writer, 1)
        stream.send("XREAD", "BLOCK", "0", "STREAMS", "k", "0")
        wait_blocked(writer, 2)
        two.send("BLPOP", "other", "k", "0")
        wait_blocked(writer, 3)
        last.send("BLPOP", "k", "0")
        wait_blocked(writer, 4)
        writer.call("XADD", "k", "1-1", "a", "1")
        assert stream.reply()[0][0] == b"k"
        writer.call("DEL", "k")
        assert writer.call("LPUSH", "k", "b", "a") == 2
        assert one.reply() == [b"k", b"a"]
        assert two.reply() == [b"k", b"b"]
        assert writer.call("EXISTS", "k") == 0
        writer.call("LPUSH", "k", "c")
        assert last.reply() == [b"k", b"c"]


def test_a_blocked_pop_times_out(server: Server) -> None:
    """With nil, after its seconds."""
    with wire(server) as client:
        begun = time.monotonic()
        assert client.call("BLPOP", "none", "0.2") is None
        assert 0.19 < time.monotonic() - begun < 30


def test_kill_by_filters(server: Server) -> None:
    """All that are named have to hold; SKIPME spares oneself unless told otherwise."""
    with wire(server) as client, wire(server) as one, wire(server) as two:
        number = one.call("CLIENT", "ID")
        assert client.call("CLIENT", "KILL", "ID", number, "TYPE", "pubsub") == 0
        assert client.call("CLIENT", "KILL", "ID", number, "USER", "default") == 1
        assert one.rest() == b""
        assert two.call("PING") == b"PONG"
        assert client.call("CLIENT", "KILL", "ID", client.call("CLIENT", "ID")) == 0
        assert client.call("CLIENT", "KILL", "ID", client.call("CLIENT", "ID"), "SKIPME", "no") == 1
        assert client.rest() == b""


def test_info_tells_what_happened(server: Server) -> None:
    """Calls, time, failures and refusals of each command; errors by their first word; RESETSTAT forgets."""
    with wire(server) as client:
        client.call("CONFIG", "RESETSTAT")
        client.call("SET", "k", "v")
        client.call("GET", "k")
        client.call("XLEN", "k")
        client.call("GET")
        client.call("XGROUP", "CREATE", "none", "g", "$")
        stats = _info(client, "commandstats")
        assert stats["cmdstat_get"].startswith("calls=1,usec=")
        assert stats["cmdstat_get"].endswith("rejected_calls=1,failed_calls=0")
        assert stats["cmdstat_xlen"].endswith("rejected_calls=0,failed_calls=1")
        assert stats["cmdstat_xgroup|create"].startswith("calls=1,")
        assert _info(client, "errorstats") == {"errorstat_ERR": "count=2", "errorstat_WRONGTYPE": "count=1"}
        assert _info(client, "stats")["total_error_replies"] == "3"
        client.call("CONFIG", "RESETSTAT")
        assert _info(client, "errorstats") == {}
        assert "cmdstat_get" not in _info(client, "commandstats")


def test_time_is_counted_where_it_goes(engine_server: Server) -> None:
    """Fifty milliseconds of sleep are the sleeper's, not its neighbours'."""
    with wire(engine_server) as client:
        client.call("CONFIG", "RESETSTAT")
        for words in (("PING",), ("DEBUG", "SLEEP", "0.05"), ("PING",)):
            client.send(*words)
        for _ in range(3):
            client.reply()
        stats = _info(client, "commandstats")
        spent = {name: int(text.split("usec=")[1].split(",")[0]) for name, text in stats.items()}
        assert 50_000 <= spent["cmdstat_debug|sleep"] < 500_000
        assert spent["cmdstat_ping"] < 40_000


def _info(client, section: str) -> dict[str, str]:  # type: ignore[no-untyped-def]
    lines = client.call("INFO", section).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_patterns(server: Server) -> None:
    """Redis' globs; many stars cost no more than their number."""
    with wire(server) as client:
        for key in ("abcabc", "ab", "a*b", "a\\b", "x" * 5000, "h[e]llo", "hello", "*" * 300):
            client.call("SET", key, "1")
        for pattern, expected in (
            ("a*c", ["abcabc"]), ("*b*b*", ["abcabc"]), ("a\\*b", ["a*b"]), ("h[^x]llo", ["hello"]), ("??", ["ab"]),
            ("a*b", ["a*b", "a\\b", "ab"]), ("h[a-f]ll*", ["hello"]), ("*bca*", ["abcabc"]), ("a**c", ["abcabc"]),
        ):  # fmt: skip
            assert sorted(client.call("KEYS", pattern)) == [one.encode() for one in expected], pattern


def test_many_stars_stall_nobody(engine_server: Server) -> None:
    """Matching goes over the key once for each star, not once for each way of placing them."""
    with wire(engine_server) as client:
        client.call("SET", "x" * 5000, "1")
        begun = machine_seconds()
        assert client.call("KEYS", "*x" * 254 + "y") == []
        assert len(client.call("KEYS", "*" * 300)) >= 1
        assert client.call("KEYS", "*x" * 254 + "*z*") == []
        assert client.call("KEYS", "*x" * 3000 + "*z*").startswith("ERR pattern too long")
        assert machine_seconds() - begun < 2


def test_a_copy_shares_nothing(engine_server: Server) -> None:
    """Two thousand entries, half of them pending: what is done to one is not done to the other."""
    with wire(engine_server) as client:
        client.call("FLUSHALL")
        for number in range(2000):
            client.send("XADD", "s", f"{number + 1}-0", "f", number)
        client.send("XGROUP", "CREATE", "s", "g", "0")
        client.send("XREADGROUP", "GROUP", "g", "c", "COUNT", "1000", "STREAMS", "s", ">")
        for _ in range(2002):
            client.reply()
        whole = client.call("XRANGE", "s", "-", "+")
        assert client.call("COPY", "s", "t") == 1
        client.call("XACK", "s", "g", *[f"{number}-0" for number in range(1, 901)])
        client.call("XTRIM", "s", "MAXLEN", "10")
        client.call("XDEL", "s", "2000-0")
        assert client.call("XRANGE", "t", "-", "+") == whole
        assert client.call("XPENDING", "t", "g")[0] == 1000
        assert client.call("XPENDING", "s", "g")[0] == 100
        client.call("CONFIG", "SET", "stream-node-max-entries", "10")
        client.call("XADD", "t", "*", "f", "v")
        client.call("CONFIG", "SET", "stream-node-max-entries", "100")
        assert len(client.call("XAUTOCLAIM", "t", "g", "d", "0", "0", "COUNT", "2000")[1]) == 1000


@pytest.mark.parametrize("use", USES)
def test_all_commands_of_the_connector_are_there(engine_server: Server, use: str) -> None:
    """As `rstream doctor` lists them for each use."""
    with wire(engine_server) as client:
        for words in commands_of(use, []):
            client.call("MULTI")
            assert not str(client.call(*words)).startswith("ERR unknown"), words
            client.call("DISCARD")
