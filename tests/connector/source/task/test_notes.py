"""mode=DEADLETTER: entries that do not fit the schema become letters, once, when their batch is committed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import DataLossError, InvalidOptionError, ServerUnreachableError
from spark_streams.connector.source.offset import StreamOffset
from spark_streams.connector.source.task.notes import NoteWriter, notes_key
from spark_streams.connector.source.trigger import acknowledge
from spark_streams.connector.wire.connection import Connection
from tools.driving import ALL, NEVER_AHEAD, SMALL, add, drain, pending_count, positions, read, reader, rows
from tools.servers.server import Server

LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}


def some_bad(client: redis.Redis, count: int) -> list[str]:
    """Entries of which every third does not fit."""
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.xadd("s", {"n": f"bad {n}" if n % 3 == 0 else n, "other": "x\r\ny"})
    return [str(i) for i in pipe.execute()]


def test_a_connection_that_breaks_while_a_task_leaves_a_note_is_made_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_bad(client, 9)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    honest = NoteWriter.dead

    def breaks(self: NoteWriter, *given: Any) -> None:
        honest(self, *given)
        monkeypatch.setattr(NoteWriter, "dead", honest)
        raise ServerUnreachableError("it closed the connection")

    monkeypatch.setattr(NoteWriter, "dead", breaks)
    assert read(one, start, end) == [1, 2, 4, 5, 7, 8]
    assert one.latestOffset(end, ALL) == end
    assert client.xlen("dead") == 3


def notes(client: redis.Redis) -> list[str]:
    """The fields of all notes but `batch`, which names the batch that they are of, and those of entries that have their
    dead letters."""
    hashes = [client.hgetall(key) for key in client.keys("rstream:notes*")]
    return [field for fields in hashes for field, value in fields.items() if field != "batch" and value]


@pytest.mark.parametrize("tasks", [1, 2])
def test_missing_notes_end_the_query_before_anything_is_acknowledged(
    server: Server, client: redis.Redis, tasks: int
) -> None:
    """Evicted, or deleted by somebody, when one of two tasks had left its notes, or both. Entries that did not fit
    would be acknowledged without a letter."""
    some_bad(client, 20)
    one = reader(server, entriesPerPartition="10", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    for number, share in enumerate(one.partitions(start, end), 1):
        assert list(one.read(share))
        if number == tasks:
            client.delete("rstream:notes:{s}:g:spark")
    assert number == 2
    gone = r"stream 's' at .*: key 'rstream:notes:{s}:g:spark' was deleted .*failOnDataLoss=false"
    with pytest.raises(DataLossError, match=gone):
        one.latestOffset(end, ALL)
    for options in (LETTERS, {}):  # another start does not pass over it
        with pytest.raises(DataLossError, match=gone):
            reader(server, **options).latestOffset(end, ALL)
    assert pending_count(client) == 20
    assert not client.exists("dead")
    lenient = reader(server, failOnDataLoss="false", **LETTERS)
    assert drain(lenient, start=end) == []
    letters = client.xlen("dead")
    assert lenient.reportLatestOffset()["lost"] == {"s": 1}, "their number is not known"
    assert letters == {1: 3, 2: 0}[tasks]
    assert pending_count(client) == 0


def test_entries_that_no_task_reads_are_acknowledged_and_become_no_dead_letters(
    server: Server, client: redis.Redis
) -> None:
    """A plan with `limit` runs the first of three tasks."""
    some_bad(client, 30)
    one = reader(server, entriesPerPartition="10", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    [share, *others] = one.partitions(start, end)
    assert len(others) == 2
    assert list(one.read(share))
    assert one.latestOffset(end, ALL) == end
    assert [fields["n"] for _, fields in client.xrange("dead")] == ["bad 0", "bad 3", "bad 6", "bad 9"]
    assert pending_count(client) == 0


def test_notes_of_a_server_that_has_returned_to_an_older_state_are_missed(server: Server, client: redis.Redis) -> None:
    """It has the hash, but of the batch before. Dead letters of the last batch would be missing in silence."""
    some_bad(client, 5)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    read(one, start, first)
    some_bad(client, 5)
    second = one.latestOffset(first, ALL)
    older = client.hgetall("rstream:notes:{s}:g:spark")
    read(one, first, second)
    client.delete("rstream:notes:{s}:g:spark")
    client.hset("rstream:notes:{s}:g:spark", mapping=older)
    with pytest.raises(DataLossError, match="the server has returned to a state before that batch"):
        one.latestOffset(second, ALL)
    assert pending_count(client) == 5
    lenient = reader(server, failOnDataLoss="false", **LETTERS)
    assert lenient.latestOffset(second, ALL) == second
    assert lenient.reportLatestOffset()["lost"] == {"s": 1}, "their number is not known"


def test_notes_of_an_earlier_batch_are_missed_if_the_server_has_returned_to_before_it(
    server: Server, client: redis.Redis
) -> None:
    """The last batch was of another stream. The dead letters were posted, and the server has lost them."""
    both: dict[str, str] = {**LETTERS, "streams": "s,t"}
    some_bad(client, 5)
    client.xadd("t", {"n": 1})
    one = reader(server, **both)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    read(one, start, first)
    some_bad(client, 5)
    second = one.latestOffset(first, ALL)
    older, mark = client.hgetall("rstream:notes:{s}:g:spark"), client.get("rstream:committed:{s}:g:spark")
    assert mark is not None
    read(one, first, second)
    client.xadd("t", {"n": 2})
    third = one.latestOffset(second, ALL)
    read(one, second, third)
    client.delete("dead", "rstream:notes:{s}:g:spark")
    client.hset("rstream:notes:{s}:g:spark", mapping=older)
    client.set("rstream:committed:{s}:g:spark", mark)
    with pytest.raises(DataLossError, match="stream 's'.* the server has returned to a state before that batch"):
        reader(server, **both).latestOffset(third, ALL)
    lenient = reader(server, failOnDataLoss="false", **both)
    assert lenient.latestOffset(third, ALL) == third
    assert lenient.reportLatestOffset()["lost"] == {"s": 1}, "their number is not known"


def test_a_dead_letter_that_the_server_has_forgotten_is_written_again(server: Server, client: redis.Redis) -> None:
    """A failover after the dead letters of a batch were posted. The next batch is committed when the driver starts
    again: it acknowledges both, and the note is of the first."""
    client.xadd("s", {"n": "no number"})
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    read(one, start, first)
    [(field, note)] = [
        (field, value) for field, value in client.hgetall("rstream:notes:{s}:g:spark").items() if "letter" in field
    ]
    [pending] = client.xpending_range("s", "g", "-", "+", 1)
    delivered = int(client.time()[0]) * 1000 - pending["time_since_delivered"] - 1000
    add(client, 1)
    second = one.latestOffset(first, ALL)
    assert client.xlen("dead") == 1
    read(one, first, second)
    client.delete("dead")
    client.set("rstream:committed:{s}:g:spark", str(StreamOffset.parse(first["streams"]["s"]).mark))
    client.hset("rstream:notes:{s}:g:spark", field, note)
    client.xclaim("s", "g", "spark", 0, [pending["message_id"]], time=delivered, force=True)
    assert reader(server, **LETTERS).latestOffset(second, ALL) == second
    assert client.xlen("dead") == 1
    assert pending_count(client) == 0


def test_notes_of_a_committed_batch_are_not_missed(server: Server, client: redis.Redis) -> None:
    """They were taken, and nothing has been read since. A restart meets a server that has lost them."""
    some_bad(client, 5)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [1, 2, 4]
    assert one.latestOffset(end, ALL) == end
    client.delete("rstream:notes:{s}:g:spark")
    assert reader(server, **LETTERS).latestOffset(end, ALL) == end
    lenient = reader(server, failOnDataLoss="false", **LETTERS)
    assert lenient.latestOffset(end, ALL) == end
    assert "lost" not in lenient.reportLatestOffset()
    assert client.xlen("dead") == 2


def test_notes_are_not_missed_when_their_batch_is_planned_or_committed_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that run twice, several actions on one batch, a batch that is read again, a reply that is lost when the
    notes were taken, and a batch in which all entries fit: the hash is there."""
    some_bad(client, 20)
    one = reader(server, noAck="true", entriesPerPartition="5", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    again = reader(server, noAck="true", entriesPerPartition="5", **LETTERS)
    for share in [*again.partitions(start, end), *again.partitions(start, end)]:
        list(again.read(share))
    honest = acknowledge.collect

    def lost_reply(*given: Any) -> Any:
        honest(*given)
        monkeypatch.setattr(acknowledge, "collect", honest)
        raise ServerUnreachableError("it closed the connection")

    monkeypatch.setattr(acknowledge, "collect", lost_reply)
    assert again.latestOffset(end, ALL) == end
    assert client.xlen("dead") == 7
    assert not notes(client)
    add(client, 5)
    last = again.latestOffset(end, ALL)
    assert len(read(again, end, last)) == 5
    assert reader(server, noAck="true", **LETTERS).latestOffset(last, ALL) == last


def test_a_checkpoint_that_is_set_back_misses_no_notes(server: Server, client: redis.Redis) -> None:
    """Notes of that batch were taken when it was committed. Batches after it have read the stream, or another one."""
    some_bad(client, 9)
    one = reader(server, streams="s,t", **LETTERS)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    read(one, start, first)
    add(client, 5, "t")
    second = one.latestOffset(first, ALL)
    read(one, first, second)
    add(client, 5)
    third = one.latestOffset(second, ALL)
    read(one, second, third)
    assert one.latestOffset(third, ALL) == third
    assert client.xlen("dead") == 3
    client.xgroup_setid("s", "g", positions(first)["s"])
    client.xgroup_setid("t", "g", "0")
    for stream in ("s", "t"):
        client.set(f"rstream:committed:{{{stream}}}:g:spark", "0-0 0.unknown")
    again = reader(server, streams="s,t", **LETTERS)
    assert [n for batch in drain(again, start=first) for n in batch] == [0, 1, 2, 3, 4] * 2
    assert client.xlen("dead") == 3


def test_a_driver_that_dies_while_it_takes_notes_misses_none_afterwards(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_bad(client, 60)
    limits = replace(SMALL, note_page=5)
    one = reader(server, limits=limits, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    execute, left = Connection.execute, 3

    def dying(self: Connection, *arguments: Any) -> Any:
        nonlocal left
        if arguments[0] == "HSCAN":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return execute(self, *arguments)

    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "execute", dying)
            left = 3
            with contextlib.suppress(KeyboardInterrupt):
                reader(server, limits=limits, **LETTERS).latestOffset(end, ALL)
    assert reader(server, limits=limits, **LETTERS).latestOffset(end, ALL) == end
    assert client.xlen("dead") == 20
    assert not notes(client)


def test_an_entry_that_does_not_fit_becomes_one_dead_letter_with_its_fields_untouched(
    server: Server, client: redis.Redis
) -> None:
    raw = server.client()
    ids = some_bad(client, 30)
    raw.xadd("s", {b"n": b"\xff\r\n", b"": b""})
    one = reader(server, entriesPerPartition="8", **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [n for n in range(30) if n % 3]
    assert not client.exists("dead")
    assert pending_count(client) == 31
    assert read(one, start, end) == [n for n in range(30) if n % 3]  # tasks may run twice
    assert one.latestOffset(end, ALL) == end
    letters = sorted((fields for _, fields in raw.xrange("dead")), key=lambda letter: StreamId.parse(letter[b"dl.id"]))
    assert [letter[b"dl.id"].decode() for letter in letters[:10]] == ids[::3]
    assert letters[0][b"n"] == b"bad 0"
    assert letters[0][b"other"] == b"x\r\ny"
    assert (letters[10][b"n"], letters[10][b""]) == (b"\xff\r\n", b"")
    told = {name.decode(): value.decode() for name, value in letters[0].items() if name.startswith(b"dl.")}
    assert told["dl.stream"] == "s"
    assert (told["dl.group"], told["dl.consumer"], told["dl.reason"]) == ("g", "spark", "decode")
    assert "n" in told["dl.message"]
    assert "BIGINT" in told["dl.message"]
    assert "bad 0" in told["dl.message"]
    assert told["dl.error"] == "RSTREAM_DECODE"
    assert told["dl.redrives"] == "0"
    assert told["dl.first-failed"].endswith("Z")
    assert pending_count(client) == 0
    assert not notes(client)
    assert one.reportLatestOffset()["dead"] == {"s": 11}


@pytest.mark.parametrize("when", ["after reading", "after the commit"])
def test_a_crash_leaves_one_dead_letter_for_each(server: Server, client: redis.Redis, when: str) -> None:
    some_bad(client, 60)
    crashed = reader(server, **LETTERS)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    read(crashed, start, end)
    again = reader(server, entriesPerPartition="7", **LETTERS)
    if when == "after reading":
        assert read(again, start, end) == [n for n in range(60) if n % 3]
    assert drain(again, start=end) == []
    letters = client.xrange("dead")
    assert sorted(fields["n"] for _, fields in letters) == sorted(f"bad {n}" for n in range(0, 60, 3))
    assert pending_count(client) == 0


def test_a_crash_between_two_pages_of_letters(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page of letters is one transaction; those that follow are posted by the next run."""
    for n in range(600):
        client.xadd("s", {"n": "x" * 70 + str(n)})  # too large for a hash in one piece
    limits = replace(SMALL, note_page=200)
    one = reader(server, limits=limits, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    from spark_streams.connector.source.task import notes as task_notes

    honest, posted = task_notes.post, []

    def dies(*arguments: object, **more: object) -> None:
        if len(posted) == 1:
            raise KeyboardInterrupt
        posted.append(honest(*arguments, **more))  # type: ignore[arg-type, func-returns-value]

    with monkeypatch.context() as patch:
        patch.setattr(task_notes, "post", dies)
        with pytest.raises(KeyboardInterrupt):
            one.latestOffset(end, ALL)
    assert 0 < client.xlen("dead") < 600
    assert drain(reader(server, **LETTERS), start=end) == []
    assert sorted(int(fields["n"][70:]) for _, fields in client.xrange("dead")) == list(range(600))
    assert pending_count(client) == 0


@pytest.mark.parametrize("killed", [False, True], ids=["acknowledged", "killed before the mark"])
def test_a_task_that_was_suspended_beyond_the_end_of_its_batch_makes_no_second_dead_letter(
    server: Server, client: redis.Redis, killed: bool
) -> None:
    """It notes an entry again whose dead letter exists. The next run finds the emptied note, and maybe no mark."""
    some_bad(client, 6)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    partitions = one.partitions(start, end)
    mark = client.get("rstream:committed:{s}:g:spark")
    assert one.latestOffset(end, ALL) == end
    if killed:
        client.set("rstream:committed:{s}:g:spark", mark)
    for partition in partitions:
        assert list(one.read(partition))
    assert not [field for field in notes(client) if " letter " in field]
    assert drain(reader(server, **LETTERS), start=end) == []
    assert [fields["n"] for _, fields in client.xrange("dead")] == ["bad 0", "bad 3"]


def test_a_restart_that_writes_the_dead_letters_of_a_whole_batch_keeps_its_limit(
    server: Server, client: redis.Redis
) -> None:
    """They are acknowledged with their dead letters: the group must be looked at again before entries are reserved."""
    some_bad(client, 1)
    one = reader(server, limits=NEVER_AHEAD, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == []
    for n in range(1, 4):
        client.xadd("s", {"n": n})
    again = reader(server, maxEntriesPerTrigger="1", **LETTERS)
    limit = again.getDefaultReadLimit()
    more = again.latestOffset(end, limit)
    assert read(again, end, more) == [1]


def test_notes_of_a_batch_that_no_checkpoint_knows_are_void(server: Server, client: redis.Redis) -> None:
    some_bad(client, 6)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    assert client.hlen(notes_key("s", one.batches.member)) == 4, "two, one on columns, and the batch's token"
    # The checkpoint was deleted: a new query takes the pending entries first, in a batch of its own.
    fresh = reader(server, **LETTERS)
    assert drain(fresh) == [[1, 2, 4, 5]]
    assert client.xlen("dead") == 2
    assert pending_count(client) == 0


def test_dead_letters_that_cannot_be_written_stop_the_query_and_nothing_is_acknowledged(
    server: Server, client: redis.Redis
) -> None:
    client.set("dead", "text")
    add(client, 2)
    client.xadd("s", {"n": "bad"})
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    with pytest.raises(Exception, match="RSTREAM_WRONG_KEY_TYPE.*'dead'"):
        one.latestOffset(end, ALL)
    assert pending_count(client) == 3
    client.delete("dead")
    assert drain(reader(server, **LETTERS), start=end) == []
    assert client.xlen("dead") == 1


def test_what_an_earlier_run_noted_of_a_batch_is_void(server: Server, client: redis.Redis) -> None:
    """The run that gets the batch committed has another schema, and another mode: everything fits."""
    some_bad(client, 6)
    crashed = reader(server, **LETTERS)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    read(crashed, start, end)
    text = pa.schema([("n", pa.string())])
    again = reader(server, text, failOnDataLoss="false")
    assert sorted(row["n"] for row in rows(again, start, end)) == ["1", "2", "4", "5", "bad 0", "bad 3"]
    assert drain(again, start=end) == []
    assert not client.exists("dead")
    assert not notes(client)
    assert pending_count(client) == 0


def test_dead_letters_of_a_committed_batch_are_posted_whatever_the_mode_is_now(
    server: Server, client: redis.Redis
) -> None:
    some_bad(client, 6)
    crashed = reader(server, **LETTERS)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    assert read(crashed, start, end) == [1, 2, 4, 5]
    with pytest.raises(
        InvalidOptionError,
        match="the last batch of stream 's' is not finished.* Set mode=DEADLETTER and deadLetterStream",
    ):
        reader(server).latestOffset(end, ALL)
    assert pending_count(client) == 6
    elsewhere = reader(server, maxDeliveries="3", deadLetterStream="dead")
    assert drain(elsewhere, start=end) == []
    assert sorted(fields["n"] for _, fields in client.xrange("dead")) == ["bad 0", "bad 3"]
    assert pending_count(client) == 0


def test_dead_letters_of_a_stream_that_the_query_has_only_claimed_from(server: Server, client: redis.Redis) -> None:
    one = reader(server, streamsPattern="s*", claimIdle="1ms", **LETTERS)
    start = one.initialOffset()
    some_bad(client, 6)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"})
    time.sleep(0.01)
    end = one.latestOffset(start, ALL)
    assert end["batch"] == {}
    assert read(one, start, end) == [1, 2, 4, 5]
    assert drain(one, start=end) == []
    assert sorted(fields["n"] for _, fields in client.xrange("dead")) == ["bad 0", "bad 3"]
    assert pending_count(client) == 0
