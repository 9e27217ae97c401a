"""Posting: nothing is acknowledged without its letter, whatever the dead-letter stream and the server are up to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter import post as posting
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS, FailedEntry, post
from spark_streams.connector.errors import IdsExhaustedError, RowTooLargeError, ServerReplyError
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.pending import claim
from spark_streams.connector.source.task.notes import LetterDestination, collect, notes_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, ReplyError, pack
from spark_streams.connector.wire.replies import WATCHED_TRIES
from tests.connector.deadletter.making import DEAD, envelopes, numbers
from tools.driving import ALL, SMALL, another_reader, drain, forget_all, pending_count, read, reader
from tools.machine_time import machine_seconds
from tools.servers.server import Server, skip_without_xnack

watches_streams = True  # and runs under both rules of WATCH

LETTERS = {"mode": "DEADLETTER", "deadLetterStream": DEAD}
OVERDUE = {"claimIdle": "1ms", "maxDeliveries": "1", "deadLetterStream": DEAD}
MEMBER = Membership("g", "spark")


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    forget_all()


def pending(client: redis.Redis, count: int, consumer: str = "spark") -> list[str]:
    """Entries n = 0 … count-1 of stream s, pending for a consumer of group g; their ids."""
    ids = [str(client.xadd("s", {"n": n})) for n in range(count)]
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", consumer, {"s": ">"})
    return ids


def noted(client: redis.Redis, count: int, token: str = "t") -> None:
    """The same, noted by tasks of batch `token` as entries that do not fit."""
    for n, entry in enumerate(pending(client, count)):
        note = pack("query", "7", "now", "why", "n", str(n))
        client.hset(notes_key("s", MEMBER).decode(), f"{token} letter {entry}", note)  # type: ignore[arg-type]


def a_bad_batch(server: Server, client: redis.Redis) -> tuple[Any, dict[str, Any]]:
    """A reader and the end of its batch of two good entries and a bad one, which is read and not settled."""
    for n in ("0", "bad", "2"):
        client.xadd("s", {"n": n})
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 2]
    return one, end


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("how", ["an entry", "an entry that is gone"])
def test_where_the_dead_letter_stream_has_no_ids_left_nothing_is_acknowledged(
    server: Server, client: redis.Redis, left: int, how: str
) -> None:
    """Also where some of the letters would find one."""
    noted(client, 3)
    last = StreamId(MAX_ID.ms, MAX_ID.seq - left)
    client.xadd(DEAD, {"x": "y"}, id="5-0")
    client.xadd(DEAD, {"x": "y"}, id=str(last))
    if how == "an entry that is gone":
        client.xdel(DEAD, str(last))
    before = client.xrange(DEAD)
    with Connection(Address.parse(server.url)) as connection:
        with pytest.raises(IdsExhaustedError, match=f"stream 'dead' at .* cannot take 3 more entries: .*{last}"):
            collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD))
        assert (pending_count(client), client.xrange(DEAD)) == (3, before)
        client.rename(DEAD, "full")
        assert collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD)).dead_letters == {"s": 3}
    assert (pending_count(client), numbers(server, DEAD)) == (0, [0, 1, 2])


def test_a_query_stops_where_ids_run_out_while_it_runs_and_goes_on_later(server: Server, client: redis.Redis) -> None:
    one, end = a_bad_batch(server, client)
    client.xadd(DEAD, {"x": "y"}, id=str(MAX_ID))
    with pytest.raises(IdsExhaustedError):
        one.latestOffset(end, ALL)
    assert pending_count(client) == 3
    client.delete(DEAD)
    assert drain(reader(server, **LETTERS), start=end) == []
    assert (pending_count(client), client.xlen(DEAD)) == (0, 1)


def test_an_entry_that_was_delivered_too_often_stays_pending_where_ids_have_run_out(
    server: Server, client: redis.Redis
) -> None:
    pending(client, 3, consumer="bob")
    client.xadd(DEAD, {"x": "y"}, id=str(MAX_ID))
    time.sleep(0.01)
    one = reader(server, **OVERDUE)
    start = one.initialOffset()
    with pytest.raises(IdsExhaustedError):
        one.latestOffset(start, ALL)
    assert pending_count(client) == 3


def test_a_full_memory_is_waited_for(server: Server, client: redis.Redis) -> None:
    one, end = a_bad_batch(server, client)
    client.config_set("maxmemory", "1")
    room = threading.Timer(0.5, lambda: client.config_set("maxmemory", "0"))
    room.start()
    try:
        assert one.latestOffset(end, ALL) == end
    finally:
        room.join()
    assert (pending_count(client), client.xlen(DEAD)) == (0, 1)


def test_dead_letters_are_posted_a_few_megabytes_at_a_time(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction with everything would be more than a server takes from one client."""
    honest, sent = Connection.pipeline, []

    def listens(self: Connection, commands: Any) -> Any:
        letters = [len(command[4]) for command in commands if command[0] == "XADD"]
        if letters and commands[0][0] == "MULTI":
            sent.append(letters)
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", listens)
    sizes = [10, 60_000, 60_000, 30_000, 250_000, *[10] * 7]
    for size in sizes:
        client.xadd("s", {"n": "x" * size})
    few = replace(DEAD_LETTER_LIMITS, post_entries=5, post_bytes=100_000)
    one = reader(server, limits=replace(SMALL, dead_letters=few), **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    assert one.latestOffset(end, ALL) == end
    assert [len(letters) for letters in sent] == [2, 2, 1, 5, 2]
    assert [sum(letters) for letters in sent] == [60_010, 90_000, 250_000, 50, 20]
    assert sorted(len(fields["n"]) for _, fields in client.xrange(DEAD)) == sorted(sizes)
    left = [field for key in client.keys("rstream:notes*") for field, note in client.hgetall(key).items() if note]
    assert (pending_count(client), left) == (0, ["batch"])  # which batch the notes were opened for


def test_a_dead_letter_that_is_larger_than_the_server_takes_is_named_at_once_and_nothing_is_acknowledged(
    server: Server, client: redis.Redis
) -> None:
    """Redis closes the connection in the midst of the request."""
    [entry] = pending(client, 1, consumer="bob")
    client.xadd("s", {"n": "y" * 2_500_000}, id=f"{int(entry.split('-')[0]) + 9}-0")
    client.xreadgroup("g", "bob", {"s": ">"})
    time.sleep(0.01)
    client.config_set("proto-max-bulk-len", "1mb")
    try:
        one = reader(server, **OVERDUE)
        start = one.initialOffset()
        began = machine_seconds()
        with pytest.raises(RowTooLargeError, match=r"has 2,500,001 bytes, .* takes 1048576 \(proto-max-bulk-len\)"):
            one.latestOffset(start, ALL)
        assert machine_seconds() - began < 10
        assert (pending_count(client), client.exists(DEAD)) == (2, 0)
    finally:
        client.config_set("proto-max-bulk-len", "512mb")
    assert drain(reader(server, **OVERDUE)) == []
    assert (pending_count(client), sorted(map(len, (f["n"] for _, f in client.xrange(DEAD))))) == (0, [1, 2_500_000])


def before(monkeypatch: pytest.MonkeyPatch, first: str, act: Callable[[], object], times: int = 1) -> None:
    """Something happens before a pipeline that begins with this command is sent."""
    honest = Connection.pipeline
    left = [act] * times

    def waits(self: Connection, commands: Any) -> Any:
        if left and commands and commands[0][0] == first:
            left.pop()()
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", waits)


def between_queue_and_exec(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], word: str = "XACK") -> None:
    """Something happens when all commands are queued and EXEC is not sent yet."""
    honest = Connection.pipeline
    once = [act]

    def slow(self: Connection, commands: Any) -> Any:
        if once and commands and commands[0][0] == "MULTI" and any(c[0] == word for c in commands):
            queued = honest(self, commands[:-1])
            once.pop()()
            return queued + honest(self, commands[-1:])
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", slow)


def asks_again_at_exec(server: Server) -> bool:
    """Whether EXEC misses the right to a key that is taken away behind a queued command."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "queues", "reset", "on", ">pw", "~*", "+@all")
        try:
            with Connection(Address.parse(server.url.replace("://", "://queues:pw@"))) as connection:
                connection.pipeline([("MULTI",), ("EXISTS", "a")])
                admin.execute_command("ACL", "SETUSER", "queues", "resetkeys", "~b")
                [replies] = connection.pipeline([("EXEC",)])
                return isinstance(replies[0], ReplyError)
        finally:
            admin.acl_deluser("queues")


@pytest.mark.parametrize("found_by", ["note", "claim"])
def test_where_rights_are_taken_away_within_the_transaction_the_entries_are_pending_again(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Most servers ask once more at EXEC, command by command: the XADD is refused, the XACK is not."""
    if not asks_again_at_exec(redis_server):
        # Redis 8.6 carries out what was queued, so the situation cannot occur. Other servers of --servers run it.
        pytest.skip("this server checks the rights to keys when a command is queued, and not again at EXEC (R40)")
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "+@all")
        limited = Address.parse(redis_server.url.replace("://", "://limited:pw@"))
        if found_by == "note":
            noted(client, 3)
        else:
            pending(client, 3)
        rights = ("reset", "on", ">pw", "+@all", "~s", "~rstream:*")
        between_queue_and_exec(monkeypatch, lambda: client.execute_command("ACL", "SETUSER", "limited", *rights))
        given_up = claim.DeadEntries("s", "spark", [StreamId.parse(i) for i, _ in client.xrange("s")], [7, 8, 9])

        def all_of(connection: Connection) -> object:
            if found_by == "note":
                return collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD)).dead_letters
            return claim.dead_letter(connection, "g", given_up, DEAD)

        try:
            with Connection(limited) as connection:
                with pytest.raises(
                    ServerReplyError,
                    match="3 dead letters of stream 's', .* as before. .*NOPERM.* '~dead'",
                ):
                    all_of(connection)
                assert (pending_count(client), client.exists(DEAD)) == (3, 0)
                if found_by == "claim":
                    assert [p["times_delivered"] for p in client.xpending_range("s", "g", "-", "+", 9)] == [7, 8, 9]
                client.execute_command("ACL", "SETUSER", "limited", "~*")
                assert all_of(connection) == ({"s": 3} if found_by == "note" else (3, 0))
        finally:
            client.acl_deluser("limited")
        assert (pending_count(client), numbers(redis_server, DEAD)) == (0, [0, 1, 2])
        assert not any(client.hvals(notes_key("s", MEMBER)))


def test_where_ids_run_out_within_the_transaction_the_entries_are_pending_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By XSETID, which WATCH does not notice: one letter finds an id, the others none."""
    noted(client, 3)
    client.xadd(DEAD, {"n": -1})
    almost = StreamId(MAX_ID.ms, MAX_ID.seq - 1)
    between_queue_and_exec(monkeypatch, lambda: client.execute_command("XSETID", DEAD, str(almost)))
    with Connection(Address.parse(server.url)) as connection:
        with pytest.raises(
            ServerReplyError, match="2 dead letters of stream 's', .* as before. .* cannot take more entries"
        ):
            collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD))
        assert (pending_count(client), numbers(server, DEAD)) == (2, [-1, 0])
        client.rename(DEAD, "full")
        assert collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD)).dead_letters == {"s": 2}
    assert (pending_count(client), numbers(server, DEAD)) == (0, [1, 2])


@pytest.mark.parametrize("found_by", ["note", "claim"])
def test_a_transaction_that_is_carried_out_late_and_one_that_stands_for_it_post_one_dead_letter_each(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """Its connection broke, the server had not come to it yet; meanwhile what is due was looked at again."""
    ids = pending(client, 5) if found_by == "claim" else []
    if found_by == "note":
        noted(client, 5)
    given_up = claim.DeadEntries("s", "spark", [StreamId.parse(one) for one in ids], [1] * 5)

    def all_of(connection: Connection) -> None:
        if found_by == "note":
            collect(GroupClient(connection, MEMBER), ["s"], "t", LetterDestination(DEAD))
        else:
            claim.dead_letter(connection, "g", given_up, DEAD)

    with Connection(Address.parse(server.url)) as early, Connection(Address.parse(server.url)) as late:
        before(monkeypatch, "WATCH", lambda: all_of(late))
        all_of(early)
    assert (pending_count(client), numbers(server, DEAD)) == (0, list(range(5)))


def test_two_queries_that_give_up_the_same_entries_post_one_dead_letter_each(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen what a dead consumer of their group has left before either has posted it."""
    pending(client, 6, consumer="bob")
    time.sleep(0.01)
    one = reader(server, consumer="one", **OVERDUE)
    two = another_reader(server, consumer="two", **OVERDUE)
    start, other_start = one.initialOffset(), two.initialOffset()
    honest = claim.post

    def other_first(*given: Any) -> Any:
        monkeypatch.setattr(claim, "post", honest)
        assert two.latestOffset(other_start, ALL) == other_start
        return honest(*given)

    monkeypatch.setattr(claim, "post", other_first)
    assert one.latestOffset(start, ALL) == start
    assert (pending_count(client), numbers(server, DEAD)) == (0, list(range(6)))
    assert (one.reportLatestOffset().get("dead"), two.reportLatestOffset().get("dead")) == (None, {"s": 6})


def test_dead_letters_that_others_append_meanwhile_are_no_matter(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead-letter stream changes between WATCH and EXEC; the transaction is tried again, at last without WATCH."""
    ids = pending(client, 4)
    before(monkeypatch, "MULTI", lambda: client.xadd(DEAD, {"n": -1}), times=WATCHED_TRIES + 1)
    letters = [FailedEntry("s", entry.encode(), [b"n", b"%d" % n], {"stream": "s"}) for n, entry in enumerate(ids)]
    with Connection(Address.parse(server.url)) as connection:
        assert post(connection, DEAD, "g", letters) == 4
    assert numbers(server, DEAD) == [-1] * (WATCHED_TRIES + 1) + [0, 1, 2, 3]
    assert (pending_count(client), len([e for e in envelopes(server) if e])) == (0, 4)


def test_released_entries_whose_dead_letters_are_refused_are_released_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XNACK: pending for nobody, as often delivered as before; one that somebody has taken since is not due."""
    skip_without_xnack(client)
    ids = pending(client, 3)
    fatal = 2**63 - 1
    client.execute_command("XNACK", "s", "g", "FATAL", "IDS", 3, *ids)
    given_up = claim.DeadEntries("s", None, [StreamId.parse(one) for one in ids], [fatal] * 3)
    client.xclaim("s", "g", "ann", 0, ids[2:])

    def refused(server: Any, to: str, due: Any, commands: Any) -> Any:
        return [ReplyError("NOPERM No permissions to access a key")] * len(due) + server.pipeline(commands[len(due) :])

    with Connection(Address.parse(server.url)) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(posting, "_transaction", refused)
            with pytest.raises(ServerReplyError, match="2 dead letters of stream 's', .* pending as before"):
                claim.dead_letter(connection, "g", given_up, DEAD)
        rows = client.xpending_range("s", "g", "-", "+", 9)
        assert [(one["consumer"], one["times_delivered"]) for one in rows] == [("", fatal), ("", fatal), ("ann", fatal)]
        assert claim.dead_letter(connection, "g", given_up, DEAD) == (2, 0)
    assert numbers(server, DEAD) == [0, 1]
    assert [one["consumer"] for one in client.xpending_range("s", "g", "-", "+", 9)] == ["ann"]
