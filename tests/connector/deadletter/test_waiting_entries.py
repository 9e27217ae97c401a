"""What waits for another try: it comes back once wherever a process dies; seen, sent back and deleted by hand."""

from __future__ import annotations

import json

import pytest
import redis

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.deadletter.waiting_entries import return_due_entries
from spark_streams.connector.errors import IdsExhaustedError, ServerReplyError
from spark_streams.connector.keys import delays_key, retry_stream, returned_stream
from spark_streams.connector.source.group.begin import require_entry_counts
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.deadletter.making import SMALL
from tests.connector.deadletter.test_cli import dead
from tests.connector.deadletter.test_post import between_queue_and_exec
from tools.sending import at_each_point, before_sending
from tools.servers.server import Server

watches_streams = True  # and runs under both rules of WATCH

WAITING, BACK = retry_stream("s", "g", 1), returned_stream("s", "g")


@pytest.fixture(autouse=True)
def _server_of_queries(server: Server) -> None:
    """Only queries bring entries back, and they refuse a server that counts nothing (Redis 6.2)."""
    with Connection(Address.parse(server.url)) as connection:
        require_entry_counts(connection)


def fill(client: redis.Redis, count: int, start: int = 0) -> list[bytes]:
    told = {"stream": "s", "id": "5-5", "reason": "decode", "deliveries": "1"}
    return [
        bytes(
            client.execute_command("XADD", WAITING, f"{n + 1 + start}-0", *dead_letter_fields([b"n", b"%d" % n], told))
        )
        for n in range(count)
    ]


def numbers(client: redis.Redis, stream: str) -> list[int]:
    return [int(fields[b"n"]) for _, fields in client.xrange(stream)]


def test_due_entries_return_once_and_in_order_wherever_the_process_dies(server: Server) -> None:
    with server.client() as client:

        def begin() -> None:
            client.flushall()
            fill(client, 25)

        def act() -> None:
            with Connection(Address.parse(server.url)) as connection:
                return_due_entries(connection, WAITING, BACK, "g", StreamId(22, 0), limits=SMALL)

        def check() -> None:
            assert numbers(client, BACK) == list(range(22))
            assert numbers(client, WAITING) == [22, 23, 24]
            assert [one["name"] for one in client.xinfo_groups(BACK)] == [b"g"]

        assert at_each_point(begin, act, check) > 3


def test_at_most_the_limit_returns_at_once_and_the_rest_returns_next_time(server: Server) -> None:
    with server.client() as client, Connection(Address.parse(server.url)) as connection:
        fill(client, 60)
        some = return_due_entries(connection, WAITING, BACK, "g", MAX_ID, 10, SMALL)
        assert 10 <= some < 60
        assert numbers(client, BACK) == list(range(some))
        assert return_due_entries(connection, WAITING, BACK, "g", MAX_ID, None, SMALL) == 60 - some
        assert numbers(client, BACK) == list(range(60))


def test_entries_that_others_take_or_add_meanwhile_are_noticed(server: Server) -> None:
    with server.client() as client, Connection(Address.parse(server.url)) as connection:
        ids = fill(client, 10)
        with before_sending(b"MULTI", act=lambda *_: client.xdel(WAITING, ids.pop()), times=3):
            assert return_due_entries(connection, WAITING, BACK, "g", MAX_ID, limits=SMALL) == 7
        assert numbers(client, BACK) == list(range(7))


def test_what_the_server_refuses_in_the_last_moment_waits_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By XSETID, which WATCH does not notice: one entry finds an id, the others none."""
    with server.client() as client, Connection(Address.parse(server.url)) as connection:
        fill(client, 1)
        assert return_due_entries(connection, WAITING, BACK, "g", MAX_ID, limits=SMALL) == 1
        fill(client, 3, start=1)
        almost = StreamId(MAX_ID.ms, MAX_ID.seq - 1)
        between_queue_and_exec(monkeypatch, lambda: client.execute_command("XSETID", BACK, str(almost)), "XDEL")
        with pytest.raises(ServerReplyError, match="2 entries of stream 'rstream:retry.* wait there as before"):
            return_due_entries(connection, WAITING, BACK, "g", MAX_ID, limits=SMALL)
        assert (numbers(client, WAITING), numbers(client, BACK)) == ([1, 2], [0, 0])
        with pytest.raises(IdsExhaustedError):
            return_due_entries(connection, WAITING, BACK, "g", MAX_ID, limits=SMALL)
        assert numbers(client, WAITING) == [1, 2]


def test_list_says_what_waits_until_when_and_for_which_try(server: Server) -> None:
    with server.client() as client:
        now = int(client.time()[0]) * 1000
        told = dead_letter_fields([b"n", b"1"], {"stream": "s", "id": "5-5"})
        client.execute_command("XADD", retry_stream("s", "g", 2), f"{now}-0", *told)
        client.set(delays_key("s", "g"), "1000 3600000")
        fill(client, 3)
        client.delete(retry_stream("s", "h", 1))
        client.execute_command("XADD", retry_stream("s", "h", 1), "7-0", *told)
    first, second, other = json.loads(dead(server, "list", "--json").output)
    assert first == {
        "waits_in": WAITING, "entries": 3, "stream": "s", "group": "g", "attempt": 2, "due": 1001, "due_in": 0
    }  # fmt: skip
    assert (second["attempt"], second["due"]) == (3, now + 3_600_000)
    assert 3_500_000 < second["due_in"] <= 3_600_000
    assert (other["group"], other["due"], other["due_in"]) == ("h", None, None)
    shown = dead(server, "list").output.splitlines()
    assert shown[0] == "none"
    assert shown[2].split() == [WAITING, "3", "s", "g", "2", "now"]
    assert shown[3].split()[:6] == [retry_stream("s", "g", 2), "1", "s", "g", "3", "in"]
    assert "no query has retryDelay" in shown[4]


def test_list_shows_returned_entries_that_are_not_acknowledged(server: Server) -> None:
    """Pending for some consumer, or not read yet: it stands in the returned stream until it is acknowledged."""
    with server.client() as client:
        client.xgroup_create(BACK, "g", "0", mkstream=True)
        assert json.loads(dead(server, "list", "--json").output) == []
        told = dead_letter_fields([b"n", b"1"], {"stream": "s", "id": "5-5"})
        for _ in range(2):
            client.execute_command("XADD", BACK, "*", *told)
        client.xreadgroup("g", "bob", {BACK: ">"}, count=1)
    assert json.loads(dead(server, "list", "--json").output) == [
        {"waits_in": BACK, "entries": 2, "stream": "s", "group": "g", "attempt": None, "due": None, "due_in": None}
    ]
    shown = dead(server, "list").output.splitlines()
    assert shown[2].split() == [BACK, "2", "s", "g", "-", "returned"]


def test_what_waits_is_shown_and_purged_like_dead_letters_and_not_redriven(server: Server) -> None:
    with server.client() as client:
        fill(client, 4)
        assert "dl.stream" in dead(server, "show", WAITING).output
        assert "deleted 1 " in dead(server, "purge", WAITING, "--limit", "1", "--yes").output
        for options in ([], ["--yes"]):
            refused = dead(server, "redrive", WAITING, *options, apart=True)
            assert refused.exit_code == (1 if options else 3)
            assert "cannot be redriven. Wait until a query of the group retries them" in refused.stderr
        assert (numbers(client, "s"), client.xlen(WAITING)) == ([], 3)


@pytest.mark.parametrize("command", [("redrive",), ("redrive", "--yes"), ("purge",), ("purge", "--yes")])
def test_returned_entries_are_left_to_the_query(server: Server, command: tuple[str, ...]) -> None:
    with server.client() as client, Connection(Address.parse(server.url)) as connection:
        fill(client, 2)
        return_due_entries(connection, WAITING, BACK, "g", MAX_ID)
        name, *options = command
        refused = dead(server, name, BACK, *options, apart=True)
        assert refused.exit_code != 0
        assert "which queries of group 'g' read" in refused.stderr
        assert client.xlen(BACK) == 2
