"""What INFO counts: changes since the last save, calls and errors of commands that waited, keys that are waited for."""

from __future__ import annotations

import time

import pytest

from tests.engine.judge import Judge
from tests.engine.wire import Failed, Wire, wait_blocked, wire
from tools.servers.server import Server, running_engine

Rows = list[tuple[str, int]]

# A command, and how many changes it counts as, in order from an empty server.
STREAMS: Rows = [
    ("XADD s 1-1 a 1", 1), ("XADD s 2-1 a 1", 1), ("XADD s 3-1 a 1", 1), ("XADD s 4-1 a 1", 1), ("XADD s 5-1 a 1", 1),
    ("XADD s 1-1 a 1", 0), ("XADD no NOMKSTREAM * a 1", 0), ("XADD s MAXLEN 5 6-1 a 1", 1),
    ("XGROUP CREATE s g 0", 1), ("XGROUP CREATE s g 0", 0), ("XGROUP CREATE new g 0 MKSTREAM", 1),
    ("XGROUP CREATECONSUMER s g ann", 1), ("XGROUP CREATECONSUMER s g ann", 0),
    ("XREADGROUP GROUP g ann COUNT 2 STREAMS s >", 1), ("XREADGROUP GROUP g bob NOACK COUNT 1 STREAMS s >", 2),
    ("XREADGROUP GROUP g eve STREAMS s >", 2), ("XREADGROUP GROUP g eve STREAMS s >", 0),
    ("XREAD STREAMS s 0", 0), ("XCLAIM s g ann 0 2-1 5-1", 2), ("XCLAIM s g ann 0 2-1 JUSTID", 1),
    ("XCLAIM s g ann 99999 2-1", 0), ("XCLAIM s g ann 99999 2-1 LASTID 2-2", 0),
    ("XCLAIM s g ann 99999 2-1 LASTID 9-9", 1), ("XCLAIM s g ann 0 7-7", 0),
    ("XAUTOCLAIM s g eve 0 0", 4), ("XAUTOCLAIM s g eve 99999 0", 0),
    ("XDEL s 2-1 3-1", 2), ("XDEL s 2-1", 0), ("XCLAIM s g ann 0 2-1", 1), ("XAUTOCLAIM s g ann 0 0", 3),
    ("XACK s g 5-1 6-1", 2), ("XACK s g 5-1", 0), ("XPENDING s g", 0),
    ("XTRIM s MAXLEN 1", 2), ("XTRIM s MAXLEN 1", 0), ("XSETID s 60-1", 1), ("XGROUP SETID s g 0", 1),
    ("XGROUP DELCONSUMER s g ann", 1), ("XGROUP DELCONSUMER s g nobody", 0), ("XGROUP DESTROY s g", 1),
    ("XGROUP DESTROY s g", 0), ("DEL s new nope", 2),
]  # fmt: skip
NEWER: Rows = [
    ("XADD s 1-1 a 1", 1), ("XADD s 2-1 a 1", 1), ("XADD s 3-1 a 1", 1), ("XADD s 4-1 a 1", 1), ("XADD s 5-1 a 1", 1),
    ("XADD s IDMP p 1 * a 1", 1), ("XADD s IDMP p 1 * a 1", 1), ("XADD s IDMP p 2 MAXLEN 6 * a 1", 1),
    ("XIDMPRECORD s p x 2-1", 1), ("XIDMPRECORD s p x 2-1", 0), ("XIDMPRECORD s p x 3-1", 0),
    ("XCFGSET s IDMP-DURATION 50 IDMP-MAXSIZE 51", 1), ("XCFGSET s IDMP-DURATION 50", 0),
    ("XGROUP CREATE s g 0", 1), ("XREADGROUP GROUP g ann COUNT 4 STREAMS s >", 2),
    ("XREADGROUP GROUP g ann STREAMS s 0", 0), ("XREADGROUP GROUP g ann STREAMS s 9000", 0),
    ("XREADGROUP GROUP g noconsumer STREAMS s 0", 1), ("XREADGROUP GROUP g eve CLAIM 99999 STREAMS s >", 2),
    ("XREADGROUP GROUP g eve STREAMS s >", 0), ("XREADGROUP GROUP g bob STREAMS s >", 1),
    ("XREADGROUP GROUP g ann CLAIM 0 COUNT 1 STREAMS s >", 1), ("XCLAIM s g cy 99999 3-1", 1),
    ("XAUTOCLAIM s g dan 99999 0", 1), ("XNACK s g FAIL IDS 2 2-1 3-1", 2), ("XNACK s g FAIL IDS 1 99-1", 0),
    ("XACKDEL s g IDS 2 2-1 3-1", 2), ("XACKDEL s g IDS 1 99-1", 0), ("XDELEX s IDS 2 4-1 99-1", 1),
    ("XDELEX s IDS 1 99-1", 0),
]  # fmt: skip
OTHERS: Rows = [
    ("SET k v", 1), ("SET k v NX", 0), ("APPEND k x", 1), ("INCR n", 1),
    ("MSET a 1 b 2", 2), ("HSET h a 1 b 2", 2), ("HSET h a 2 d 3", 2), ("HSETNX h a 1", 0),
    ("HDEL h a b nope", 2), ("HDEL h nope", 0), ("HDEL h d", 1), ("SADD set a b c", 3), ("SADD set a", 0),
    ("SREM set a b zz", 2), ("SREM set zz", 0), ("LPUSH l c b a", 3), ("LPUSH l d", 1), ("LPOP l 2", 2),
    ("LPOP nol", 0), ("BLPOP l 0", 1), ("LRANGE l 0 -1", 0), ("EXPIRE n 100", 1),
    ("EXPIRE nope 100", 0), ("PERSIST n", 1), ("PERSIST n", 0), ("EXPIRE n -1", 1), ("RENAME a a2", 1),
    ("RENAME a2 b", 1), ("COPY b b2", 1), ("COPY b b2", 0),
    ("COPY b b2 REPLACE", 1), ("MOVE b2 1", 1), ("MOVE b2 1", 0), ("SWAPDB 0 3", 1), ("FLUSHALL", 5),
    ("FLUSHALL", 0),
]  # fmt: skip


def info(client: Wire, section: str) -> dict[str, str]:
    """The fields of a section of INFO."""
    lines = client.call("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def changes(client: Wire) -> int:
    """Since the last save."""
    return int(info(client, "persistence")["rdb_changes_since_last_save"])


def counted(client: Wire, rows: Rows) -> Rows:
    """The commands with the changes that they counted as here."""
    client.call("FLUSHALL")
    found = []
    for text, _ in rows:
        before = changes(client)
        client.call(*text.split())
        found.append((text, changes(client) - before))
    return found


@pytest.mark.parametrize("rows", [STREAMS, OTHERS], ids=["streams", "others"])
def test_changes_are_counted_as_redis_counts_them(server: Server, rows: Rows) -> None:
    """Most commands once, others for each thing that they add or remove."""
    with wire(server) as client:
        assert counted(client, rows) == rows


def test_changes_of_newer_commands(engine_server: Server) -> None:
    """As in Redis 8.8: a history read counts for nothing but the consumer that it makes."""
    with wire(engine_server) as client:
        assert counted(client, NEWER) == NEWER


def test_what_expires_is_no_change(server: Server) -> None:
    """Whether somebody looks at it or not."""
    with wire(server) as client:
        client.call("SET", "k", "v", "PX", 30)
        before = changes(client)
        time.sleep(0.05)
        assert client.call("GET", "k") is None
        assert changes(client) == before


def newer_than(server: Server, client: Wire, version: tuple[int, int]) -> None:
    """Skip where the server is an older one."""
    if server.kind == "redis" and Judge(client).version < version:
        # The engine always runs it. An older Redis does not have the counter that the two are compared by.
        pytest.skip(f"this Redis is older than {version[0]}.{version[1]}")


def blocking_keys(client: Wire) -> tuple[int, int]:
    """Keys that somebody waits for, and those among them whose going would end a wait."""
    fields = info(client, "clients")
    return int(fields["total_blocking_keys"]), int(fields["total_blocking_keys_on_nokey"])


def test_keys_that_a_client_waits_for(server: Server) -> None:
    """As BLPOP and XREADGROUP come to one key and go."""
    with wire(server) as client, wire(server) as group:
        newer_than(server, client, (7, 2))
        with wire(server) as pop:
            pop.send("BLPOP", "s", 0)
            wait_blocked(client, 1)
            assert blocking_keys(client) == (1, 0)
            client.call("XADD", "s", "1-1", "a", 1)
            client.call("XGROUP", "CREATE", "s", "g", "$")
            group.send("XREADGROUP", "GROUP", "g", "ann", "BLOCK", 0, "STREAMS", "s", ">")
            wait_blocked(client, 2)
            assert blocking_keys(client) == (1, 1)
            client.call("DEL", "s")
            assert str(group.reply()).startswith("NOGROUP")
            assert blocking_keys(client) == (1, 0)
        wait_blocked(client, 0)
        assert blocking_keys(client) == (0, 0)


def test_others_of_clients(server: Server) -> None:
    """Who watches, and who does not wait for ever."""
    with wire(server) as client, wire(server) as other:
        newer_than(server, client, (7, 4))
        client.call("WATCH", "a", "b")
        other.send("BLPOP", "l", 100)
        wait_blocked(client, 1)
        fields = info(client, "clients")
        names = ("watching_clients", "total_watched_keys", "clients_in_timeout_table")
        assert [fields[name] for name in names] == ["1", "2", "1"]
        client.call("UNWATCH")
        assert info(client, "clients")["total_watched_keys"] == "0"


def stats(client: Wire, name: str) -> dict[str, int]:
    """calls, rejected_calls and failed_calls of a command; nothing if it was never called."""
    text = info(client, "commandstats").get(f"cmdstat_{name}", "")
    fields = dict(pair.split("=") for pair in text.split(",") if pair)
    return {name: int(fields[name]) for name in ("calls", "rejected_calls", "failed_calls") if name in fields}


@pytest.mark.parametrize(
    ("ending", "reply", "failed", "errors"),
    [
        ("XGROUP DESTROY s g", "NOGROUP", 1, {"errorstat_NOGROUP": "count=1"}),
        ("CLIENT UNBLOCK {id} ERROR", "UNBLOCKED", 1, {"errorstat_UNBLOCKED": "count=1"}),
        ("CLIENT UNBLOCK {id} TIMEOUT", None, 0, {}),
        ("XADD s 5-1 a 1", "5-1", 0, {}),
    ],
    ids=["group gone", "unblocked with an error", "unblocked", "served"],
)
def test_a_command_that_waits_counts_when_it_has_its_reply(
    server: Server, ending: str, reply: str | None, failed: int, errors: dict[str, str]
) -> None:
    """Once, and as failed where that is an error."""
    with wire(server) as client, wire(server) as reader:
        newer_than(server, client, (7, 2))
        client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        identity = reader.call("CLIENT", "ID")
        client.call("CONFIG", "RESETSTAT")
        reader.send("XREADGROUP", "GROUP", "g", "ann", "BLOCK", 0, "STREAMS", "s", ">")
        wait_blocked(client, 1)
        assert stats(client, "xreadgroup") == {}
        client.call(*ending.format(id=identity).split())
        got = reader.reply()
        assert reply is None or str(got).startswith(reply) or got[0][1][0][0] == reply.encode()
        # Valkey counts a wait that CLIENT UNBLOCK … ERROR ends as rejected.
        rejected = int("ERROR" in ending and server.kind == "redis" and Judge(client).valkey)
        expected = {"calls": 1, "rejected_calls": rejected, "failed_calls": failed - rejected}
        assert stats(client, "xreadgroup") == expected
        assert info(client, "errorstats") == errors
        assert info(client, "stats")["total_error_replies"] == str(len(errors))


def test_who_hangs_up_was_never_answered(server: Server) -> None:
    """A command that waited until its client went counts as none; one whose time is up counts."""
    with wire(server) as client:
        newer_than(server, client, (7, 2))
        client.call("CONFIG", "RESETSTAT")
        with wire(server) as reader:
            reader.send("BLPOP", "l", 0)
            wait_blocked(client, 1)
        wait_blocked(client, 0)
        assert stats(client, "blpop") == {}
        assert client.call("BLPOP", "l", "0.01") is None
        assert stats(client, "blpop") == {"calls": 1, "rejected_calls": 0, "failed_calls": 0}


def test_errors_of_commands_are_counted_apart() -> None:
    """Refused before it began, and failed when it had begun."""
    with running_engine() as server, wire(server) as client:
        assert isinstance(client.call("XADD", "s"), Failed)
        assert isinstance(client.call("XADD", "s", "0-0", "a", "1"), Failed)
        assert stats(client, "xadd") == {"calls": 1, "rejected_calls": 1, "failed_calls": 1}
        assert info(client, "errorstats") == {"errorstat_ERR": "count=2"}
