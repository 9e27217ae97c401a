"""Redrive: what goes where, which letters are meant, and that each is moved once."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.envelope import MARK, RedriveMark, dead_letter_fields
from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.mover import redrive_key, redriven_key
from spark_streams.connector.deadletter.post import FailedEntry, post
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive, RedriveLease, RedriveReport
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.errors import (
    IdsExhaustedError,
    InvalidOptionError,
    RedriveTakenError,
    ServerReplyError,
    ServerUnreachableError,
    StreamMissingError,
    StreamStateError,
    TransformError,
    UnsupportedError,
    WrongKeyTypeError,
)
from spark_streams.connector.keys import origins_key, retry_stream
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.replies import WATCHED_TRIES
from tests.connector.deadletter.making import DEAD, SMALL, envelopes, fill, marks, numbers, redrive, words
from tools.sending import KilledError, before_sending, dying_at, in_turn, killed, lost, reply_lost
from tools.servers.server import Server


def test_dead_letters_become_their_original_entries_with_a_mark_and_are_deleted(server: Server) -> None:
    ids = fill(server, 130)
    report = redrive(server)
    assert (report.moved, report.parked, report.left, report.looked_at) == (130, 0, 0, 130)
    with server.client() as client:
        assert client.xlen(DEAD) == 0
        assert client.keys("rstream:*") == [origins_key(DEAD)]  # neither lease nor state
        entries = words(client, "s")
    assert [fields[:4] for _, fields in entries] == [[b"n", b"%d" % n, b"raw", b"\xff\r\n"] for n in range(130)]
    assert [fields[4:] for _, fields in entries] == [
        [MARK, bytes(RedriveMark(1, "2026-01-01T00:00:00.000000Z", f"dead/{one} {n + 1}-0"))]
        for n, one in enumerate(ids)
    ]
    assert redrive(server).moved == 0


def test_an_entry_that_dies_again_tells_its_past_and_is_parked_when_it_was_sent_back_too_often(server: Server) -> None:
    """What the source's own writer makes of the mark is what the next redrive reads."""
    fill(server, 1)
    names = []
    for times in range(3):
        assert redrive(server, allow=("s",)).moved == 1
        with server.client() as client, Connection(Address.parse(server.url)) as connection:
            entry, fields = words(client, "s")[-1]
            client.xgroup_create("s", f"g{times}", "0")
            told = {"stream": "s", "id": entry, "first-failed": "now", "last-failed": "now"}
            post(connection, DEAD, f"g{times}", [FailedEntry("s", entry.encode(), fields, told)])
            names.append(words(client, DEAD)[0][0])
        (envelope,) = envelopes(server)
        assert (envelope["redrives"], envelope["id"]) == (str(times + 1), entry)
        assert envelope["first-failed"] == "2026-01-01T00:00:00.000000Z"
        assert envelope["last-failed"] == "now"
        if times:
            assert envelope["previous"] == f"dead/{names[-2]} 1-0", "the first ID, however often it was redriven"
    with server.client() as client:
        letter = words(client, DEAD)[0][1]
        report = redrive(server, allow=("s",))
        assert (report.moved, report.parked) == (0, 1)
        assert client.xlen(DEAD) == 0
        assert [fields for _, fields in words(client, "dead:parked")] == [letter]  # whole, byte for byte
        assert len(words(client, "s")) == 3
    assert redrive(server, stream="dead:parked", max_redrives=9, allow=("s",)).moved == 1


def test_the_first_id_is_left_out_if_it_is_not_known(server: Server) -> None:
    """A dead letter of another writer, one that names no ID, and one that an earlier version has redriven."""
    ids = [*fill(server, 1, id="5-0"), *fill(server, 1, id="no ID"), *fill(server, 1, id="\udcff 5-0")]
    with server.client() as client:
        redriven = dead_letter_fields([b"n", b"1", MARK, b"1 t dead/7-0"], {"stream": "s", "id": "8-0", "group": "g"})
        ids.append(client.execute_command("XADD", DEAD, "*", *redriven).decode())  # type: ignore[no-untyped-call]
    assert redrive(server).moved == 4
    found = [mark.previous for one in marks(server) if (mark := RedriveMark.parse(one)) is not None]
    assert found == [f"dead/{ids[0]} 5-0", *[f"dead/{one}" for one in ids[1:]]]


@pytest.mark.parametrize(
    ("criteria", "meant"),
    [
        (Criteria(reasons=("decode",)), lambda n: n % 3 == 0),
        (Criteria(reasons=("dec*", "nothing")), lambda n: n % 3 == 0),
        (Criteria(reasons=("odd",), fields=(("n", "4"),)), lambda n: n == 4),
        (Criteria(fields=(("raw", "\udcff\r\n"), ("n", "6"))), lambda n: n == 6),
        (Criteria(fields=(("dl.id", "5-0"),)), lambda n: False),  # the envelope is none of the original fields
        (Criteria(streams=("t", "s"), stages=("r?ad",), errors=("",)), lambda n: True),
        (Criteria(streams=("t",)), lambda n: False),
        (Criteria(older=3_600_000), lambda n: False),
        (Criteria(newer=3_600_000), lambda n: True),
    ],
)
def test_only_dead_letters_that_meet_all_criteria_go(server: Server, criteria: Criteria, meant: object) -> None:
    fill(server, 100)
    expected = [n for n in range(100) if meant(n)]  # type: ignore[operator]
    looked = redrive(server, dry_run=True, criteria=criteria)
    assert looked.moved == len(expected)
    assert numbers(server) == []
    report = redrive(server, criteria=criteria)
    assert report.counts.counts == looked.counts.counts
    assert numbers(server) == expected
    assert sorted(numbers(server, DEAD)) == sorted(set(range(100)) - set(expected))


def test_bounds_on_ids_and_a_limit(server: Server) -> None:
    ids = fill(server, 100)
    chosen = Criteria(first=StreamId.parse(ids[10]), last=StreamId.parse(ids[80]), reasons=("odd",))
    wanted = [n for n in range(10, 81) if n % 3]
    assert redrive(server, criteria=chosen, limit=20).moved == 20
    assert numbers(server) == wanted[:20]
    assert redrive(server, criteria=chosen, to="elsewhere").moved == len(wanted) - 20
    assert numbers(server, "elsewhere") == wanted[20:]


def test_a_dry_run_changes_nothing_and_counts_by_reason_and_destination(server: Server) -> None:
    fill(server, 90)
    fill(server, 10, redrives="0")
    with server.client() as client:
        client.xadd(DEAD, {"no": "letter"})
        before = words(client, DEAD), client.keys("*")
        report = redrive(server, dry_run=True, rate=5)
        assert (words(client, DEAD), client.keys("*")) == before
    assert {kind: count.letters for kind, count in report.counts} == {
        ("move", "s", "read", "odd"): 66,
        ("move", "s", "read", "decode"): 34,
    }
    assert report.looked_at == 101


def test_each_stream_gets_its_own_dead_letters_back(server: Server) -> None:
    for n in range(60):
        fill(server, 1, first=n, stream=f"s{n % 3}")
    redrive(server)
    assert [numbers(server, f"s{at}") for at in range(3)] == [list(range(at, 60, 3)) for at in range(3)]


def test_dead_letters_that_come_after_the_start_stay(server: Server) -> None:
    """The upper id is frozen: a letter that dies again at once is not moved in circles."""
    fill(server, 100)

    def dies_again(report: RedriveReport) -> None:
        fill(server, 20, first=1000)

    report = DeadLetterRedrive(Address.parse(server.url), RedriveOptions(DEAD), limits=SMALL, tell=dies_again).run()
    assert report.moved == 100
    assert numbers(server) == list(range(100))
    assert set(numbers(server, DEAD)) == set(range(1000, 1020))


def test_it_keeps_to_the_rate(server: Server) -> None:
    fill(server, 120)
    clock, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    options = RedriveOptions(DEAD, rate=40)
    DeadLetterRedrive(Address.parse(server.url), options, limits=SMALL, clock=lambda: clock[0], sleep=sleep).run()
    assert sum(slept) == pytest.approx(120 / 40)
    assert max(slept) <= 0.11


def test_a_transform_repairs_dead_letters_or_leaves_them(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repairs.py").write_text(
        "def repair(letter):\n"
        "    n = int(letter.fields['n'])\n"
        "    if letter.envelope['reason'] == 'decode':\n"
        "        return None\n"
        "    return {**letter.fields, 'n': n + 1000, 'was': letter.id, 'bytes': b'\\x00'}\n"
        "def fails(letter):\n    return 1 / 0\n"
        "def empty(letter):\n    return {}\n"
        "def nothing(letter):\n    return {'n': None}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ids = fill(server, 30)
    for name, message in (
        ("repairs:fails", f"failed at dead letter {ids[0]}: ZeroDivisionError: division by zero"),
        ("repairs:empty", "returned dict for dead letter"),
        ("repairs:nothing", "returned None for dead letter .* Return str, bytes, int or float"),
        ("repairs:none", "has no function 'none'"),
        ("nowhere:x", "cannot be imported: ModuleNotFoundError"),
        ("nowhere", "is not of the form module:function"),
    ):
        with pytest.raises(TransformError, match=message):
            redrive(server, transform=name)
        assert numbers(server, DEAD) == list(range(30))
    report = redrive(server, transform="repairs:repair")
    assert (report.moved, report.left) == (20, 10)
    assert numbers(server, DEAD) == list(range(0, 30, 3))
    assert numbers(server) == [n + 1000 for n in range(30) if n % 3]
    with server.client() as client:
        first = words(client, "s")[0][1]
    assert first[:-2] == [b"n", b"1001", b"raw", b"\xff\r\n", b"was", ids[1].encode(), b"bytes", b"\x00"]
    assert RedriveMark.parse(marks(server)[0]) == RedriveMark(1, "2026-01-01T00:00:00.000000Z", f"dead/{ids[1]} 2-0")


def test_an_impossible_redrive_is_an_error_and_moves_nothing(server: Server) -> None:
    with pytest.raises(StreamMissingError, match="no stream 'dead' at .*; rstream dead list lists the streams"):
        redrive(server)
    fill(server, 5)
    with pytest.raises(InvalidOptionError, match="to 'dead' itself"):
        redrive(server, to=DEAD)
    with server.client() as client:
        client.set("text", "x")
        with pytest.raises(
            WrongKeyTypeError, match="cannot be moved to key 'text' at .*: it holds a string. Name a stream"
        ):
            redrive(server, to="text")
        assert client.xlen(DEAD) == 5
        with pytest.raises(WrongKeyTypeError):
            redrive(server, stream="text")
        assert redrive(server).moved == 5


@pytest.mark.parametrize("options", [{}, {"max_redrives": 0, "parking": "s"}], ids=["move", "park"])
@pytest.mark.parametrize("left", [0, 3])
def test_where_a_destination_has_no_ids_left_dead_letters_stay(
    server: Server, options: dict[str, Any], left: int
) -> None:
    fill(server, 20)
    last = StreamId(MAX_ID.ms, MAX_ID.seq - left)
    with server.client() as client:
        client.xadd("s", {"n": -1}, id=str(last))
        client.xadd(DEAD, {"no": "letter"})
        before = words(client, DEAD)
        with pytest.raises(IdsExhaustedError, match=f"stream 's' at .* cannot take 7 more entries: .*{last}"):
            redrive(server, **options)
        assert (words(client, DEAD), client.xlen("s")) == (before, 1)
        client.delete("s")
    assert redrive(server, to="s").moved == 20


def test_dead_letters_leave_a_stream_that_has_no_ids_left(server: Server) -> None:
    fill(server, 20)
    with server.client() as client:
        client.xadd(DEAD, {"no": "letter"}, id=str(MAX_ID))
    assert redrive(server).moved == 20
    assert numbers(server) == list(range(20))


def test_dead_letters_that_name_no_stream_to_go_to_or_one_of_dead_letters_stay_and_are_counted(server: Server) -> None:
    fill(server, 9)
    at = 9
    for stream in ("", DEAD, "parking"):
        fill(server, 3, first=at, has_group=False, stream=stream)
        with server.client() as client:  # parked, wherever it came from
            entry = [b"n", b"%d" % (at + 3), MARK, bytes(RedriveMark(3, "", ""))]
            client.execute_command("XADD", DEAD, "*", *dead_letter_fields(entry, {"stream": stream, "id": "1-0"}))
        at += 4
    fill(server, 2, first=at, stream="dead:parked")  # parked letters go elsewhere: a stream like any other
    expected = {"move": 11, "stay": 9, "park": 3}
    looked = redrive(server, dry_run=True, parking="parking")
    with server.client() as client:
        assert not client.exists("", "parking")
        assert client.xlen("s") == 0
        report = redrive(server, parking="parking")
        for one in (looked, report):
            counts = {action: sum(c.letters for kind, c in one.counts if kind[0] == action) for action in expected}
            assert counts == expected
            assert (one.moved, one.homeless, one.parked, one.looked_at) == (11, 9, 3, 23)
            assert {kind[1] for kind, _ in one.counts if kind[0] == "stay"} == {"", DEAD, "parking"}
        assert not client.exists("")
        assert (client.xlen("s"), client.xlen("parking"), client.xlen("dead:parked")) == (9, 3, 2)
    assert sorted(numbers(server, DEAD)) == [9, 10, 11, 13, 14, 15, 17, 18, 19]
    assert redrive(server, parking="parking", to="elsewhere").moved == 9
    with pytest.raises(InvalidOptionError, match="sent to 'parking', where they are parked"):
        redrive(server, parking="parking", to="parking")


def test_a_limit_counts_what_goes_and_not_what_stays(server: Server) -> None:
    for n in range(0, 60, 2):
        fill(server, 1, first=n, stream="")
        fill(server, 1, first=n + 1)
    report = redrive(server, limit=10)
    assert (report.moved, report.homeless) == (10, 10)
    assert numbers(server) == list(range(1, 20, 2))


def no_ids_left(client: redis.Redis, stream: str) -> Callable[..., object]:
    """Return an act that sets the last ID of a stream to the maximum, which WATCH does not notice."""
    return lambda *_: client.execute_command("XSETID", stream, str(MAX_ID))


def test_dead_letters_whose_entry_is_refused_within_the_transaction_stay(server: Server) -> None:
    """A command that fails within EXEC does not stop the others: the note on the entry is removed."""
    fill(server, 3)
    with server.client() as client:
        before = words(client, DEAD)
        refused = pytest.raises(ServerReplyError, match="3 dead letters .* could not be moved, and stay in it: ")
        with before_sending(b"MULTI", b"HSET", act=no_ids_left(client, "s"), times=1), refused:
            redrive(server)
        assert words(client, DEAD) == before
        client.delete("s")
        client.xgroup_create("s", "g", id="0", mkstream=True)
    assert redrive(server).moved == 3
    assert numbers(server) == [0, 1, 2]


def test_a_refused_entry_is_told_also_if_the_connection_is_lost_before_its_page_is_done(server: Server) -> None:
    fill(server, 3)
    with server.client() as client:

        def one_id_left(*_: object) -> None:
            client.execute_command("XSETID", "s", str(StreamId(MAX_ID.ms, MAX_ID.seq - 1)))

        told = pytest.raises(IdsExhaustedError, match="cannot take 2 more entries")
        is_lost = before_sending(b"MULTI", b"DEL", redriven_key("s", DEAD), act=lost, times=1)
        with before_sending(b"MULTI", b"HSET", act=one_id_left, times=1), is_lost as broken, told:
            redrive(server)
        assert broken
    assert (numbers(server), numbers(server, DEAD)) == ([0], [1, 2])


@contextlib.contextmanager
def busy_stream_is_replaced(client: redis.Redis) -> Iterator[list[bytes]]:
    """Stream `s` is appended to before each transaction that WATCHes it, and becomes a text before the next one."""

    def change(*_: object) -> None:
        if len(changed) <= WATCHED_TRIES:
            client.xadd("s", {"n": -1})
        else:
            client.delete("s")
            client.set("s", "text")

    with before_sending(b"MULTI", b"dl.redriven", act=change, times=WATCHED_TRIES + 1) as changed:
        yield changed


def test_dead_letters_that_a_busy_stream_refuses_stay(server: Server) -> None:
    fill(server, 3)
    with server.client() as client:
        before = words(client, DEAD)
        refused = pytest.raises(
            ServerReplyError, match="3 dead letters .* could not be moved, and stay in it: key 's' at"
        )
        with busy_stream_is_replaced(client) as changed, refused:
            redrive(server)
        assert len(changed) == WATCHED_TRIES + 1
        assert words(client, DEAD) == before


@pytest.mark.in_turn
def test_dead_letters_that_a_busy_stream_refuses_are_not_lost_wherever_the_redrive_dies(server: Server) -> None:
    """The stream is created again before the redrive is started again: it has none of the entries."""
    unknown = 0
    with server.client() as client, mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        for turn in range(1, 200):
            client.flushall()
            fill(server, 3)
            ends = contextlib.suppress(KilledError, ServerReplyError)
            with busy_stream_is_replaced(client), ends, dying_at(turn, executed=True) as sent:
                redrive(server)
            client.delete("s")
            client.xgroup_create("s", "g", id="0", mkstream=True)
            try:
                redrive(server)
            except StreamStateError as error:
                unknown += 1
                assert numbers(server, DEAD) == [0, 1, 2]
                client.delete(str(error).partition("redis-cli DEL ")[2].split()[0].strip("'."))
                redrive(server)
            assert (numbers(server), numbers(server, DEAD)) == ([0, 1, 2], [])
            if len(sent) < turn:
                break
    assert unknown >= 1


@pytest.mark.parametrize("options", [{}, {"max_redrives": 0, "parking": "s"}], ids=["move", "park"])
def test_dead_letters_of_a_busy_stream_are_moved_once_wherever_the_redrive_dies(
    server: Server, options: dict[str, Any]
) -> None:
    with server.client() as client, mock.patch("spark_streams.connector.wire.lease.Lease._take"):
        for turn in range(1, 80, 4):
            client.flushall()
            fill(server, 3)
            busy = before_sending(b"MULTI", b"XADD", act=lambda *_: client.xadd("s", {"n": -1}))
            with busy as tries, contextlib.suppress(KilledError), dying_at(turn, executed=turn % 8 == 1):
                redrive(server, **options)
            redrive(server, **options)
            assert [n for n in numbers(server) if n >= 0] == [0, 1, 2]
            assert numbers(server, DEAD) == []
            assert client.keys("rstream:redri*") == []
        assert len(tries) > WATCHED_TRIES


def test_waiting_entries_are_not_redriven(server: Server) -> None:
    """A query may return them between the two transactions that move them."""
    waiting = retry_stream("s", "g", 1)
    fill(server, 3, into=waiting)
    with pytest.raises(UnsupportedError, match="wait for a retry in stream .*a shorter retryDelay helps"):
        redrive(server, stream=waiting)
    assert numbers(server, waiting) == [0, 1, 2]


def test_a_stream_that_is_written_to_all_the_time_is_redriven_all_the_same(server: Server) -> None:
    """Both the letters' stream and the destination change between WATCH and EXEC, each time."""
    fill(server, 60)
    with server.client() as client:

        def busy(*_: object) -> None:
            client.xadd("s", {"n": -1})
            fill(server, 1, first=-1)

        with before_sending(b"MULTI", b"XDEL", act=busy), before_sending(b"MULTI", b"HSET", act=busy):
            assert redrive(server).moved == 60
    assert [n for n in numbers(server) if n >= 0] == list(range(60))
    assert set(numbers(server, DEAD)) == {-1}


def test_dead_letters_that_another_client_deletes_while_they_are_moved_are_counted(server: Server) -> None:
    ids = fill(server, 20)
    with server.client() as client:
        doomed = iter([ids[2], ids[15]])
        with before_sending(b"MULTI", b"HSET", act=lambda *_: client.xdel(DEAD, next(doomed)), times=2):
            report = redrive(server)
    assert (report.moved, report.vanished) == (20, 2)
    assert numbers(server) == list(range(20))


def test_a_transaction_whose_reply_is_lost_is_counted_and_not_done_again(
    server: Server,
) -> None:
    fill(server, 60)
    with before_sending(b"XDEL", act=reply_lost, times=3) as broken:
        report = redrive(server)
    assert len(broken) == 3
    assert report.moved == 60
    assert numbers(server) == list(range(60))


def test_a_transaction_that_is_carried_out_late_is_counted_and_nobody_else_is_blamed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke; the server comes to it when the next try of the same page is on its way."""
    fill(server, 20)
    lost: list[tuple[Connection, bytes]] = []
    honest = Connection.send

    def delayed(self: Connection, data: bytes) -> None:
        if b"XDEL" in bytes(data) and not lost:
            lost.append((self, bytes(data)))
            monkeypatch.setattr(Connection, "close", lambda self: None)  # what was sent will arrive
            raise ServerUnreachableError("it is away")
        if b"XDEL" in bytes(data) and len(lost) == 1:
            early, sent = lost[0]
            lost.append(lost[0])
            honest(early, sent)
            assert isinstance(early.replies(7 + 4)[-1], list)
        honest(self, data)

    monkeypatch.setattr(Connection, "send", delayed)
    assert redrive(server).moved == 20
    assert numbers(server) == list(range(20))


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_run_that_is_begun_late_is_not_begun(server: Server, monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:
    """The connection breaks while the run begins; the server comes to that request when pages have been moved."""
    fill(server, 40)
    if goes_on:
        one = DeadLetterRedrive(
            Address.parse(server.url), RedriveOptions(DEAD), limits=SMALL, tell=lambda report: one.stop()
        )
        one.run()
    there = len(numbers(server))
    lost: list[tuple[Connection, bytes]] = []
    honest = Connection.send

    def delayed(self: Connection, data: bytes | memoryview) -> None:
        sent = bytes(data)
        if b"SET" in sent and b'"serial"' in sent and not lost:
            lost.append((self, sent))
            monkeypatch.setattr(Connection, "close", lambda self: None)  # what was sent will arrive
            raise ServerUnreachableError("it is away")
        honest(self, data)
        if b"XDEL" in sent and len(lost) == 1:
            lost.append(lost[0])
            honest(*lost[0])

    monkeypatch.setattr(Connection, "send", delayed)
    assert redrive(server).moved == 40 - there
    assert len(lost) == 2
    assert numbers(server) == list(range(40))


def test_a_connection_that_breaks_at_the_very_end_is_no_matter(server: Server) -> None:
    fill(server, 20)
    with before_sending(b"MULTI", b"DEL", redrive_key(DEAD), act=in_turn(lost, reply_lost), times=2) as broken:
        assert redrive(server).moved == 20
    assert len(broken) == 2
    with server.client() as client:
        assert not client.exists(redrive_key(DEAD))


def test_a_request_that_is_lost_is_sent_again(server: Server) -> None:
    fill(server, 60)
    with before_sending(b"EXEC", act=lost, times=3):
        assert redrive(server).moved == 60
    assert numbers(server) == list(range(60))


def test_a_second_redrive_is_refused_while_the_first_one_runs(server: Server) -> None:
    fill(server, 60)
    refused = []

    def second(report: RedriveReport) -> None:
        with pytest.raises(RedriveTakenError, match="another process moves or purges dead letters of stream"):
            redrive(server)
        refused.append(1)

    DeadLetterRedrive(Address.parse(server.url), RedriveOptions(DEAD), limits=SMALL, tell=second).run()
    assert refused
    assert numbers(server) == list(range(60))


def test_two_redrives_at_once_in_spite_of_the_lease_move_each_dead_letter_once(server: Server) -> None:
    """The one that stood still while its lease expired finds the state changed, and moves nothing any more."""
    fill(server, 100)

    def second(report: RedriveReport) -> None:
        if report.moved < 20:
            with server.client() as client:
                client.delete(RedriveLease(Address.parse(server.url), "redrive").key_of(DEAD))
            assert redrive(server, limit=30).moved == 30

    with pytest.raises(RedriveTakenError, match="has taken over the redrive of stream 'dead'"):
        DeadLetterRedrive(Address.parse(server.url), RedriveOptions(DEAD), limits=SMALL, tell=second).run()
    redrive(server)
    assert numbers(server) == list(range(100))


def test_one_that_was_stopped_goes_on_under_its_bound_when_it_is_started_again(server: Server) -> None:
    fill(server, 100)
    options = RedriveOptions(DEAD, limit=90)
    first = DeadLetterRedrive(Address.parse(server.url), options, limits=SMALL, tell=lambda report: first.stop())
    first.run()
    assert 0 < first.report.moved < 90
    assert first.report.stopped
    fill(server, 20, first=1000)  # they died after the first one had started
    again = DeadLetterRedrive(Address.parse(server.url), options, limits=SMALL).run()
    assert (again.goes_on, again.bound) == (True, first.report.bound)
    assert first.report.moved + again.moved == 90
    assert numbers(server) == list(range(90))
    with server.client() as client:
        assert not client.exists(redrive_key(DEAD))
    other = redrive(server)
    assert (other.goes_on, other.moved) == (False, 30)


def test_other_options_do_not_go_on_with_it(server: Server) -> None:
    fill(server, 50)
    one = DeadLetterRedrive(
        Address.parse(server.url), RedriveOptions(DEAD), limits=SMALL, tell=lambda report: one.stop()
    )
    one.run()
    fill(server, 10, first=50)
    report = redrive(server, to="elsewhere")
    assert not report.goes_on
    assert sorted(numbers(server) + numbers(server, "elsewhere")) == list(range(60))


def test_a_page_that_another_redrive_had_begun_is_none_of_its_limit(server: Server) -> None:
    """The entries of the killed one are in `s`, and its dead letters go."""
    fill(server, 50)
    with before_sending(b"XDEL", act=killed), pytest.raises(KilledError):
        redrive(server)
    begun = len(numbers(server))
    report = redrive(server, limit=6)
    assert (report.goes_on, report.moved, report.moved_before) == (False, 6, begun)
    assert numbers(server) == list(range(begun + 6))
    assert numbers(server, DEAD) == list(range(begun + 6, 50))


def test_a_state_that_a_killed_redrive_left_goes_on(server: Server) -> None:
    ids = fill(server, 30)
    kept = {"run": "0123456789abcdef", "serial": 4, "orders": RedriveOptions(DEAD).checked().digest(), "to": []}
    with server.client() as client:
        client.set(redrive_key(DEAD), json.dumps({**kept, "bound": ids[19], "moved": 7, "parked": 1}), px=86_400_000)
        report = redrive(server)
        assert (report.goes_on, report.moved_before, report.moved) == (True, 8, 20)
        assert not client.exists(redrive_key(DEAD))
    assert numbers(server) == list(range(20))


@pytest.mark.parametrize(
    "state",
    ['{"run": "x", "of": "a later version"}', '{"run": "x", "serial": 4, "orders": "y", "bound": "9-0", "moved": 7}'],
)
def test_a_state_that_cannot_be_read_is_refused_and_nothing_is_moved(server: Server, state: str) -> None:
    """It may tell of dead letters that are in two places."""
    fill(server, 5)
    with server.client() as client:
        client.set(redrive_key(DEAD), state)
        with pytest.raises(
            StreamStateError, match="'rstream:redrive:{dead}', .* Run rstream dead redrive dead --yes with"
        ):
            redrive(server)
    assert (numbers(server), numbers(server, DEAD)) == ([], list(range(5)))


def test_entries_moved_by_a_lost_reply_are_reported_by_kind(server: Server) -> None:
    fill(server, 30)
    with before_sending(b"XDEL", act=reply_lost, times=2):
        report = redrive(server)
    assert {kind: count.letters for kind, count in report.counts} == {
        ("move", "s", "read", "odd"): 20,
        ("move", "s", "read", "decode"): 10,
    }
    assert (report.moved, report.looked_at) == (30, 30)


def test_dead_letters_as_other_writers_leave_them(server: Server) -> None:
    """Only dl.stream and dl.id are needed; a letter within a letter is unwrapped by one."""
    with server.client() as client:
        inner = dead_letter_fields([b"n", b"1"], {"stream": "s", "id": "1-0"})
        client.execute_command("XADD", DEAD, "*", "n", "0", "dl.stream", "s", "dl.id", "7-0")
        client.execute_command("XADD", DEAD, "*", *dead_letter_fields(inner, {"stream": "letters", "id": "2-0"}))
        client.execute_command("XADD", DEAD, "*", "dl.stream", "s", "n", "2")
        report = redrive(server, allow=("s", "letters"))
        assert (report.moved, report.looked_at) == (2, 3)
        assert words(client, "letters")[0][1][:-2] == inner
        assert words(client, "s")[0][1][:2] == [b"n", b"0"]
        assert marks(server)[0].startswith(b"1  dead/")
        assert client.xlen(DEAD) == 1
