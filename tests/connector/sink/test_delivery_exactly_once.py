"""Whatever happens to tasks, drivers and connections: a batch's rows are in the stream once, or an error says why."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_streams.connector.errors import LedgerError, NotPermittedError
from spark_streams.connector.sink.chunk_writer import SinkTask, TaskResult, append
from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.connector.wire.session import Pipe, Session
from tests.connector.sink.writing import (
    KilledError,
    batch_of,
    came_before,
    close,
    dying,
    frame,
    killed_before_chunk,
    ledger_keys,
    numbers,
    options,
    write,
)
from tests.proxy import Proxy
from tools.sending import Act, before_sending, dying_at, lost, reply_lost
from tools.servers.server import Server

ROWS = list(range(400))
ONCE = Counter(ROWS)


def shuffled(rows: list[int], seed: int) -> list[int]:
    return random.Random(seed).sample(rows, len(rows))


def test_a_retry_writes_what_is_missing_in_whatever_order(server: Server) -> None:
    """Chunks 0 to 2 are written, the attempt dies, and the next one has the rows in another order."""
    checked, batch = options(server.url, chunkSize="64"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:250])]), checked, batch)
    assert 0 < sum(numbers(server).values()) < len(ROWS)
    assert write([frame(shuffled(ROWS, 1))], checked, batch).rows == len(ROWS)
    assert numbers(server) == ONCE


def test_rows_that_are_equal_are_counted(server: Server) -> None:
    """Equal rows are as many afterwards as they were before."""
    rows = [n % 7 for n in range(200)]
    checked, batch = options(server.url, chunkSize="30"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(rows[:100])]), checked, batch)
    write([frame(shuffled(rows, 2))], checked, batch)
    assert numbers(server) == Counter(rows)


def test_a_retry_with_other_rows_is_an_error(server: Server) -> None:
    """A query that returns other rows each time cannot be written once. Rows of both attempts may be in the stream."""
    checked, batch = options(server.url, chunkSize="64"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:200])]), checked, batch)
    for _ in range(2):
        with pytest.raises(LedgerError, match="rows to stream 'out' in an earlier attempt that this one does not have"):
            write([frame([n + 10_000 for n in ROWS])], checked, batch)
        assert set(numbers(server).values()) == {1}
    assert not numbers(server).keys() - {*ROWS, *[n + 10_000 for n in ROWS]}


def test_a_retry_may_have_the_rows_in_the_reverse_order(server: Server) -> None:
    """It meets what is written only at its end."""
    checked, batch = options(server.url, chunkSize="50"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:150])]), checked, batch)
    write([frame(ROWS[::-1])], checked, batch)
    assert numbers(server) == ONCE


@pytest.mark.parametrize("seed", range(4))
def test_twins_write_the_rows_once(server: Server, seed: int) -> None:
    """Speculation: three attempts of one partition race, each with its own order."""
    checked, batch = options(server.url, chunkSize="16"), batch_of(0)
    results: list[TaskResult] = []

    def attempt(order: int) -> None:
        results.append(write([frame(shuffled(ROWS, order))], checked, batch))

    twins = [threading.Thread(target=attempt, args=(10 * seed + twin,)) for twin in range(3)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()
    assert [result.rows for result in results] == [len(ROWS)] * 3
    assert numbers(server) == ONCE


@pytest.mark.parametrize("seed", range(6))
def test_a_killed_run_is_taken_up_with_other_partitions(server: Server, seed: int) -> None:
    """Drivers die after any number of chunks; the last one has another number of partitions, and rows elsewhere."""
    came_before(server, 7)
    chance = random.Random(seed)
    rows = [chance.randrange(300) for _ in range(400)]
    checked = options(server.url, chunkSize=str(chance.choice([16, 50, 1000])))
    for _ in range(chance.randrange(1, 4)):
        batch, parts = batch_of(7), chance.randrange(1, 5)
        mixed = shuffled(rows, chance.randrange(1000))
        for part in range(parts):
            mine = mixed[part::parts]
            with pytest.raises(KilledError):
                write(dying([frame(mine[: chance.randrange(len(mine))])]), checked, batch, part)
    batch, parts = batch_of(7), chance.randrange(1, 5)
    mixed = shuffled(rows, 99)
    done = []
    for part in range(parts):
        if chance.random() < 0.5:
            with pytest.raises(KilledError):
                write(dying([frame(mixed[part::parts][:60])]), checked, batch, part)
        done.append(write([frame(mixed[part::parts])], checked, batch, part))
    assert numbers(server) == Counter(rows)
    close(checked, batch, *done)
    assert ledger_keys(server) == {"rstream:sink:{out}:q", "rstream:sink:q"}


def test_tasks_of_a_run_that_takes_over_may_race(server: Server) -> None:
    """Several tasks claim the same rows of the killed run at the same time."""
    checked = options(server.url, chunkSize="16")
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:300])]), checked, batch_of(0))
    batch = batch_of(0)
    results: list[TaskResult] = []

    def task(part: int) -> None:
        results.append(write([frame(ROWS[part::3])], checked, batch, part))

    tasks = [threading.Thread(target=task, args=(part,)) for part in range(3)]
    for one in tasks:
        one.start()
    for one in tasks:
        one.join()
    assert numbers(server) == ONCE
    close(checked, batch, *results)


def test_what_a_killed_run_wrote_and_this_one_lacks_is_an_error(server: Server) -> None:
    came_before(server, 3)
    checked = options(server.url)
    write([frame([1, 2, 3])], checked, batch_of(3))
    batch = batch_of(3)
    result = write([frame([1, 2, 4])], checked, batch)
    with pytest.raises(LedgerError, match="earlier run of batch 3 of query q wrote 1 rows to stream 'out' that this"):
        close(checked, batch, result)


def test_a_killed_run_is_kept_from_writing_on(server: Server) -> None:
    """A task that has outlived its driver meets the next run's name in the head, and stops."""
    checked, old = options(server.url, chunkSize="10"), batch_of(0)
    new = batch_of(0)

    def outlived():  # type: ignore[no-untyped-def]
        yield frame(ROWS[:100])
        write([frame(ROWS)], checked, new)
        yield frame(ROWS[100:])

    with pytest.raises(LedgerError, match="another run of batch 0 of query q has taken over"):
        write(outlived(), checked, old)
    assert numbers(server) == ONCE


def test_a_finished_batch_is_not_written_again(server: Server) -> None:
    """Killed between sink and commit log: the replay writes nothing, and must have the same rows."""
    came_before(server, 5)
    checked, batch = options(server.url, chunkSize="64"), batch_of(5)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    again = batch_of(5)
    halves = [write([frame(shuffled(ROWS, 3)[part::2])], checked, again, part) for part in range(2)]
    close(checked, again, *halves)
    assert numbers(server) == ONCE
    third = batch_of(5)
    with pytest.raises(LedgerError, match="its 399 rows are not the 400 that were written then"):
        close(checked, third, write([frame(ROWS[1:])], checked, third))
    assert numbers(server) == ONCE


def test_a_checkpoint_that_was_set_back_is_an_error(server: Server) -> None:
    came_before(server, 4)
    checked = options(server.url)
    for number in (4, 5):
        batch = batch_of(number)
        close(checked, batch, write([frame([number])], checked, batch))
    with pytest.raises(LedgerError, match="batch 4 of query q cannot write to stream 'out': batch 5 of the query"):
        write([frame([4])], checked, batch_of(4))


def test_marks_go_when_their_batch_is_done(server: Server) -> None:
    """What is left of a query is its record, and a head for each stream of its last batch."""
    checked = options(server.url, chunkSize="10", streamColumn="to")
    names = ["a", "{b}c", "c}d", "d{}"]
    for number, wanted in enumerate((names, names[:2], [])):
        batch = batch_of(number)
        rows = list(range(100 * len(wanted)))
        streams = [wanted[n % len(wanted)] for n in rows]
        results = [write([frame(rows[p::2], streams[p::2])], checked, batch, p) for p in range(2)] if rows else []
        close(checked, batch, *results)
        with server.client() as client:
            assert client.hgetall("rstream:sink:q").pop(b"") == b"%d" % number
            assert client.hlen("rstream:sink:q") == 1 + len(wanted)
        assert len(ledger_keys(server)) == 1 + len(wanted)
    assert numbers(server, "c}d") == Counter(range(2, 400, 4))


def test_a_write_that_the_function_of_a_batch_gave_up_leaves_nothing_behind(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """foreachBatch: named writes are the user's to skip, also when the batch is replayed."""
    checked = options(server.url, chunkSize="10")
    killed_before_chunk(10, [frame(ROWS[:100])], checked, batch_of(0, "q.name"))
    batch = batch_of(1, "q.name")
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert ledger_keys(server) == {"rstream:sink:{out}:q.name", "rstream:sink:q.name"}
    assert "giving up write q.name of batch 0, which was begun (90 rows) and not finished" in caplog.text


def test_a_stream_that_is_deleted_between_attempts_stays_without_what_it_had(server: Server) -> None:
    """The rows were written; that somebody has deleted them since is not for the sink to undo."""
    checked, batch = options(server.url, chunkSize="50"), batch_of(0)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:100])]), checked, batch)
    written = numbers(server)
    assert written
    with server.client() as client:
        client.delete("out")
    write([frame(ROWS)], checked, batch)
    assert numbers(server) == ONCE - written


def test_what_is_flushed_is_written_again(server: Server) -> None:
    """FLUSHALL takes rows and marks: a replay writes all of them."""
    checked = options(server.url)
    write([frame(ROWS)], checked, batch_of(0))
    with server.client() as client:
        client.flushall()
    write([frame(ROWS)], checked, batch_of(0))
    assert numbers(server) == ONCE


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("seed", range(3))
def test_connections_that_are_cut_lose_nothing(server: Server, seed: int, delivery: str) -> None:
    """Cut at any byte of requests or replies, also between EXEC and its reply; once, where that was asked for."""
    chance = random.Random(seed)
    rows = list(range(1500))
    with Proxy(server.url) as proxy:
        for _ in range(12):
            proxy.cut(*chance.choice([("up", chance.randrange(1, 40_000)), ("down", chance.randrange(1, 9_000))]))
        checked, batch = options(proxy.url, chunkSize="150"), batch_of(0)
        if delivery == "exactly-once":
            result = write([frame(rows[:700]), frame(rows[700:])], checked, batch)
            close(checked, batch, result)
        else:
            append([frame(rows[:700]), frame(rows[700:])], checked, None)
        assert proxy.cut_so_far >= 3
    found = numbers(server)
    assert found.keys() == set(rows)
    if delivery == "exactly-once":
        assert found == Counter(rows)


def test_a_slot_that_moves_between_watch_and_exec_doubles_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EXEC over another connection than WATCH would not see that a twin has written the rows meanwhile."""
    checked = options(server.url)
    with pytest.raises(KilledError):
        write(dying([frame(ROWS[:10])]), checked, batch_of(0))
    batch, honest = batch_of(0), Session.pipe_of
    asked: list[str | bytes] = []

    def pipe_of(self: Session, key: str | bytes) -> Pipe:
        asked.append(key)
        if len(asked) == 2:  # 1: which way the chunk goes, 2: what is missing
            monkeypatch.undo()
            write([frame(ROWS)], checked, batch)
            return Pipe(Connection(checked.address))
        return honest(self, key)

    monkeypatch.setattr(Session, "pipe_of", pipe_of)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert len(asked) == 2
    assert numbers(server) == ONCE


def losing(turn: int, heard: bool) -> Act:
    """The connection is lost at the request of this number, from 1 on. heard: the server has executed it."""
    left = turn

    def act(server: Connection, request: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            is_queued = pack("MULTI") in request and pack("EXEC") not in request  # then nothing is executed
            (reply_lost if heard and not is_queued else lost)(server, request)

    return act


@pytest.mark.parametrize("earlier", ["nothing", "a killed run", "a killed attempt", "both"])
def test_a_connection_that_is_lost_at_any_request_loses_and_doubles_nothing(server: Server, earlier: str) -> None:
    """Before each request and behind it, of a task that writes five chunks to two streams."""
    rows, streams = ROWS[:50], ["a", "b", "b"] * 17
    checked = options(server.url, chunkSize="10", streamColumn="to")
    for turn in range(1, 100):
        lost_once = False
        for heard in (False, True):
            with server.client() as client:
                client.flushall()
            killed = dying([frame(rows[:15], streams[:15])])
            if earlier in ("a killed run", "both"):
                with pytest.raises(KilledError):
                    write(killed, checked, batch_of(0), 1)
            batch = batch_of(0)
            if earlier in ("a killed attempt", "both"):
                with pytest.raises(KilledError):
                    write(dying([frame(rows[:25], streams[:25])]), checked, batch)
            with before_sending(act=losing(turn, heard)) as sent:
                result = write([frame(rows[::-1], streams[49::-1])], checked, batch)
            lost_once = len(sent) >= turn
            close(checked, batch, result)
            assert numbers(server, "a") + numbers(server, "b") == Counter(rows), (turn, heard)
        if not lost_once:
            assert turn > 6
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("code", ["BUSY", "NOPERM"])
def test_an_end_marker_that_is_refused_loses_and_doubles_nothing(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, code: str, delivery: str
) -> None:
    """The replies of two chunks then arrive as one. BUSY passes; NOPERM is the task's error, and the next attempt goes
    on. At least once, what was outstanding comes again."""
    url = f"{redis_server.url}?socket_timeout=0.2"
    rows, checked = ROWS[:50], options(url, chunkSize="10")
    refused = pack("EVAL", f"return redis.error_reply('{code} of ECHO')", "0")
    really_send = Pipe.send
    for turn in range(1, 100):
        with redis_server.client() as client:
            client.flushall()
        left = turn

        def send(self: Pipe, *pieces: bytes | memoryview) -> None:
            nonlocal left
            sent: list[bytes | memoryview] = []
            for piece in pieces:
                left -= (has_end := self.end_marker in bytes(piece))
                sent.append(bytes(piece).replace(self.end_marker, refused) if has_end and not left else piece)
            really_send(self, *sent)

        batch = batch_of(0) if delivery == "exactly-once" else None
        with monkeypatch.context() as patched:
            patched.setattr(Pipe, "send", send)
            try:
                result = append([frame(rows)], checked, None if batch is None else SinkTask(batch))
            except NotPermittedError:
                assert code == "NOPERM"
                result = append([frame(rows)], checked, None if batch is None else SinkTask(batch))
        assert numbers(redis_server).keys() == set(rows), turn
        if batch is not None:
            close(checked, batch, result)
            assert numbers(redis_server) == Counter(rows), turn
        if left > 0:
            assert turn > 5
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("has_ids", [True, False])
def test_without_a_ledger_a_connection_that_is_lost_at_any_request_loses_nothing(server: Server, has_ids: bool) -> None:
    """Rows with ids of their own are not doubled either: their stream says which it has."""
    rows = ROWS[:50]
    columns = {"n": rows, **({"key": [f"{n + 1}-0" for n in rows]} if has_ids else {})}
    checked = options(server.url, chunkSize="10", **({"idColumn": "key"} if has_ids else {}))
    for turn in range(1, 100):
        lost_once = False
        for heard in (False, True):
            with server.client() as client:
                client.flushall()
            with before_sending(act=losing(turn, heard)) as sent:
                append([pa.RecordBatch.from_pydict(columns)], checked, None)
            lost_once = len(sent) >= turn
            found = numbers(server)
            assert found.keys() == set(rows)
            assert not has_ids or found == Counter(rows)
        if not lost_once:
            assert turn > 5
            return
    raise AssertionError("it does not end")


@pytest.mark.in_turn
@pytest.mark.parametrize("same_run", [True, False])
def test_a_task_that_is_killed_at_any_request_is_continued(server: Server, same_run: bool) -> None:
    """Before each request and behind it, while it takes over from a killed run; by a retry, or by another run."""
    rows, streams = ROWS[:50], ["a", "b", "b"] * 17
    checked = options(server.url, chunkSize="10", streamColumn="to")
    for turn in range(1, 100):
        is_killed = False
        for heard in (False, True):
            with server.client() as client:
                client.flushall()
            with pytest.raises(KilledError):
                write(dying([frame(rows[:15], streams[:15])]), checked, batch_of(0), 1)
            batch = batch_of(0)
            try:
                with dying_at(turn, heard):
                    write([frame(rows, streams[:50])], checked, batch)
            except KilledError:
                is_killed = True
            batch = batch if same_run else batch_of(0)
            close(checked, batch, write([frame(rows[::-1], streams[49::-1])], checked, batch))
            assert numbers(server, "a") + numbers(server, "b") == Counter(rows), (turn, heard)
        if not is_killed:
            assert turn > 6
            return
    raise AssertionError("it does not end")


def test_a_connection_that_breaks_while_a_task_looks_at_an_earlier_run_counts_its_rows_once(
    server: Server,
) -> None:
    """A row that was written once is claimed once, of however many that are equal."""
    write([frame([1] * 10)], options(server.url), batch_of(0))
    checked, batch = options(server.url), batch_of(0)
    with before_sending(b"GETRANGE", act=lost, times=1) as broken:
        close(checked, batch, write([frame([1] * 30)], checked, batch))
    assert broken
    assert numbers(server) == Counter({1: 30})


@pytest.mark.parametrize("piece", [1, 700])
def test_replies_in_pieces_are_the_same_replies(server: Server, piece: int) -> None:
    with Proxy(server.url) as proxy:
        proxy.piece = piece
        checked, batch = options(proxy.url, chunkSize="25"), batch_of(0)
        close(checked, batch, write([frame(ROWS[:60])], checked, batch))
    assert numbers(server) == Counter(ROWS[:60])


def passing(server: Server, spoil: Callable[[], None], mend: Callable[[], None], delivery: str) -> None:
    """Write while the server is in a state that passes by itself after some time."""
    checked = options(server.url, chunkSize="40")

    def batches():  # type: ignore[no-untyped-def]
        yield frame(ROWS[:100])
        spoil()
        threading.Timer(0.4, mend).start()
        yield frame(ROWS[100:])

    append(batches(), checked, SinkTask(batch_of(0)) if delivery == "exactly-once" else None)
    assert numbers(server) == ONCE


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_full_server_is_waited_for(server: Server, delivery: str) -> None:
    """OOM: what was refused is sent again when there is room."""
    with server.client() as admin:
        passing(
            server,
            lambda: admin.config_set("maxmemory", 1_000_000 if server.kind == "redis" else 1_000),
            lambda: admin.config_set("maxmemory", 0),
            delivery,
        )


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_replica_is_left_for_the_master(redis_server: Server, delivery: str) -> None:
    """READONLY after a failover: connected anew until the address leads to a master."""
    with redis_server.client() as admin:
        admin.flushall()
        passing(
            redis_server,
            lambda: (
                admin.execute_command("CONFIG", "SET", "replica-serve-stale-data", "yes")
                and admin.execute_command("REPLICAOF", "127.0.0.1", "1")
            ),
            lambda: admin.execute_command("REPLICAOF", "NO", "ONE"),
            delivery,
        )
