"""trim=acked leaves alone what a query still needs that lists nothing (noAck), or acknowledges before it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from spark_streams.errors import StreamStateError
from spark_streams.model.keys import key_beside
from spark_streams.retention.readers import Readers
from spark_streams.sink.send.write import append
from spark_streams.sink.trim.trim import AckedTrimmer, RetentionLimits, Trimming
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from tests.remedies import carry_out
from tests.sink.writing import frame, numbers, options
from tools.driving import ALL, LOOK_EACH_TIME, another_reader, begin, drain, forget_all, read, reader
from tools.servers.server import Server

EXACTLY = Trimming("acked", RetentionLimits(), False)


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client(decode_responses=True)


@pytest.fixture
def trimmer(server: Server) -> Iterator[AckedTrimmer]:
    with Connection(Address.parse(server.url)) as connection:
        yield AckedTrimmer(connection, EXACTLY)


def stream_of(client: redis.Redis, count: int, name: str = "s", group: str = "g") -> None:
    """Entries 1-0 … of a stream, all given to group g and acknowledged; its consumer is `spark`."""
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.xadd(name, {"n": n}, id=f"{n + 1}-0")
    pipe.execute()
    client.xgroup_create(name, group, "0")
    client.xreadgroup(group, "spark", {name: ">"}, noack=True)


def mark(client: redis.Redis, value: str, stream: str = "s", group: str = "g", consumer: str = "spark") -> None:
    client.set(key_beside(stream, "committed", group, consumer).decode(), value)


def first_id(client: redis.Redis, stream: str = "s") -> str | None:
    entries = client.xrange(stream, count=1)
    return str(entries[0][0]) if entries else None


def test_entries_above_what_it_has_committed_stay(client: redis.Redis, trimmer: AckedTrimmer) -> None:
    stream_of(client, 100)
    mark(client, "30-0 holds")
    assert (trimmer.trim([b"s"], 0), first_id(client)) == (30, "31-0")
    mark(client, "30-5 holds")
    assert (trimmer.trim([b"s"], 0), first_id(client)) == (0, "31-0")
    mark(client, "0-0 holds")
    assert trimmer.trim([b"s"], 0) == 0
    mark(client, "90-0 holds")
    assert (trimmer.trim([b"s"], 0), first_id(client)) == (60, "91-0")
    mark(client, "18446744073709551615-18446744073709551615 holds")
    assert trimmer.trim([b"s"], 0) == 10


def test_a_query_that_acknowledges_what_it_has_read_is_spoken_for_by_its_group(
    client: redis.Redis, trimmer: AckedTrimmer
) -> None:
    stream_of(client, 100)
    mark(client, "30-0")
    assert trimmer.trim([b"s"], 0) == 100


def test_the_lowest_of_several_counts_on_each_stream_for_itself(client: redis.Redis, trimmer: AckedTrimmer) -> None:
    stream_of(client, 100)
    stream_of(client, 50, "{t}:{x", "a:b c")
    client.xgroup_create("s", "slow", "0")
    client.xreadgroup("slow", "bob", {"s": ">"}, count=70)
    client.xack("s", "slow", *[f"{n + 1}-0" for n in range(60)])
    mark(client, "90-0 holds")
    mark(client, "10-0 holds", "{t}:{x", "a:b c")
    assert trimmer.trim([b"s", b"{t}:{x", b"nothing"], 0) == 70
    assert (first_id(client), first_id(client, "{t}:{x")) == ("61-0", "11-0")
    client.xreadgroup("slow", "two: 2", {"s": ">"}, noack=True)
    mark(client, "40-0 holds", group="slow", consumer="two: 2")
    assert trimmer.trim([b"s", b"{t}:{x"], 0) == 0
    mark(client, "80-0 holds", group="slow", consumer="two: 2")
    client.xack("s", "slow", *[f"{n + 1}-0" for n in range(70)])
    assert (trimmer.trim([b"s", b"{t}:{x"], 0), first_id(client)) == (20, "81-0")


@pytest.mark.parametrize("how", ["DEL", "DELCONSUMER", "DESTROY"])
def test_a_query_that_was_removed_can_be_released(client: redis.Redis, trimmer: AckedTrimmer, how: str) -> None:
    stream_of(client, 100)
    stream_of_others = client.xgroup_create("s", "other", "100-0")
    assert stream_of_others
    mark(client, "30-0 holds")
    assert trimmer.trim([b"s"], 0) == 30
    if how == "DEL":
        client.delete(key_beside("s", "committed", "g", "spark").decode())
    elif how == "DELCONSUMER":
        client.xgroup_delconsumer("s", "g", "spark")
    else:
        client.xgroup_destroy("s", "g")
    assert trimmer.trim([b"s"], 0) == 70


@pytest.mark.parametrize(
    ("trimming", "left"),
    [
        (Trimming("acked", RetentionLimits(maxlen=50), False), 70),
        (Trimming("acked", RetentionLimits(maxlen=80), False), 80),
        (Trimming("acked", RetentionLimits(maxlen=10), True), 100),  # whole nodes
        (Trimming("acked", RetentionLimits(min_id="20"), False), 81),
        (Trimming("acked", RetentionLimits(min_id="200"), False), 70),
        (Trimming("acked", RetentionLimits(retention=10), False), 70),
    ],
)
def test_it_bounds_every_threshold(server: Server, client: redis.Redis, trimming: Trimming, left: int) -> None:
    stream_of(client, 100)
    mark(client, "30-0 holds")
    with Connection(Address.parse(server.url)) as connection:
        AckedTrimmer(connection, trimming).trim([b"s"], 1000)
    assert client.xlen("s") == left


def test_a_mark_that_cannot_be_read_stops_trimming(server: Server, client: redis.Redis, trimmer: AckedTrimmer) -> None:
    stream_of(client, 10)
    mark(client, "soon holds")
    with pytest.raises(
        StreamStateError, match="'rstream:committed:{s}:g:spark' at .* holds b'soon holds', which"
    ) as no:
        trimmer.trim([b"s"], 0)
    assert client.xlen("s") == 10
    carry_out(server, str(no.value), "--even-active")
    assert trimmer.trim([b"s"], 0) == 10


def test_looking_takes_one_round_trip_as_long_as_nobody_is_new(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream_of(client, 10)
    stream_of(client, 10, "t")
    sent: list[int] = []
    honest = Connection.send

    def counts(self: Connection, data: bytes) -> None:
        sent.append(len(data))
        honest(self, data)

    with Connection(Address.parse(server.url)) as connection:
        readers = Readers()
        monkeypatch.setattr(Connection, "send", counts)

        def trips() -> int:
            sent.clear()
            readers.fetch(connection, [b"s", b"t"])
            return len(sent)

        assert [trips(), trips(), trips()] == [3, 1, 1]
        client.xgroup_createconsumer("s", "g", "new")
        mark(client, "3-0 holds", consumer="new")
        assert readers.fetch(connection, [b"s", b"t"])[b"s"].held is not None
        assert [trips(), trips()] == [1, 1]
        client.xgroup_destroy("t", "g")
        assert [trips(), trips()] == [1, 1]


def test_a_query_that_begins_while_others_are_looked_at_loses_nothing(
    server: Server, client: redis.Redis, trimmer: AckedTrimmer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group stands where it begins; it is given entries between the look and the trimming."""
    stream_of(client, 100)
    client.xgroup_create("s", "late", "40-0")
    honest = Readers.fetch

    def then_begins(self: Readers, *looked_at: Any) -> Any:
        found = honest(self, *looked_at)
        mark(client, "40-0 holds", group="late")
        client.xreadgroup("late", "spark", {"s": ">"}, noack=True)
        return found

    monkeypatch.setattr(Readers, "fetch", then_begins)
    assert (trimmer.trim([b"s"], 0), first_id(client)) == (40, "41-0")


@pytest.mark.parametrize("mode", [{"noAck": "true"}, {"delivery": "at-most-once"}])
def test_the_batch_of_a_query_that_was_killed_is_still_there(
    server: Server, client: redis.Redis, mode: dict[str, str]
) -> None:
    """Between reserving and reading, a sink trims what everybody has acknowledged."""
    try:
        pipe = client.pipeline(transaction=False)
        for n in range(300):
            pipe.xadd("out", {"n": n})
        pipe.execute()
        one = reader(server, streams="out", **mode)
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        assert read(one, start, end) == list(range(300))
        more = [client.xadd("out", {"n": n}) for n in range(300, 400)]
        after = one.latestOffset(end, ALL)
        assert after["streams"]["out"] == more[-1]
        one.batches.worker.wait()  # the mark is written there; until then it holds back more
        append([frame([400])], options(server.url, trim="acked", approximate="false"), None)
        kept = sorted(numbers(server))
        assert kept == list(range(300, 401))
        if "noAck" in mode:  # at-most-once gives its batch up, but the tasks of a living one read it
            again = reader(server, streams="out", **mode)
            assert read(again, end, after) == list(range(300, 400))
            assert drain(again, start=after) == [[400]]
        else:
            assert read(one, end, after) == list(range(300, 400))
    finally:
        forget_all()


def test_a_query_that_lists_what_it_reads_holds_nothing_else(server: Server, client: redis.Redis) -> None:
    try:
        for n in range(100):
            client.xadd("out", {"n": n})
        one = another_reader(server, streams="out")
        assert drain(one) == [list(range(100))]
        append([frame([100])], options(server.url, trim="acked", approximate="false"), None)
        assert sorted(numbers(server)) == [100]
    finally:
        forget_all()


@pytest.mark.parametrize("mode", [{"noAck": "true"}, {"delivery": "at-most-once"}])
def test_so_is_the_first_batch_from_a_stream_that_appeared_since(
    server: Server, client: redis.Redis, mode: dict[str, str]
) -> None:
    """Nothing of it is committed, and the checkpoint does not name it yet."""
    try:
        client.xadd("out:1", {"n": -1})
        one = reader(server, streamsPattern="out:*", limits=LOOK_EACH_TIME, **mode)
        start = one.initialOffset()
        at = one.latestOffset(start, ALL)
        assert read(one, start, at) == [-1]
        for n in range(300):
            client.xadd("out:2", {"n": n})
        end = one.latestOffset(at, ALL)
        one.batches.worker.wait()
        append([frame([300])], options(server.url, stream="out:2", trim="acked", approximate="false"), None)
        assert read(one, at, end) == list(range(300))
    finally:
        forget_all()


@pytest.mark.parametrize("trim", ["sink", "another query", "sink, after a broken connection"])
def test_entries_that_were_handed_to_an_at_most_once_query_stay_until_its_tasks_have_read_them(
    server: Server, client: redis.Redis, trim: str
) -> None:
    """They lie below what it has committed, and are acknowledged before tasks read them. Spark commits the batch before
    once this one is made."""
    try:
        pipe = client.pipeline(transaction=False)
        for n in range(300):
            pipe.xadd("out", {"n": n})
        ids = pipe.execute()
        one = reader(server, streams="out", delivery="at-most-once")
        start = begin(one)
        client.xreadgroup("g", "bob", {"out": ">"}, count=100)
        end = one.latestOffset(start, ALL)
        assert read(one, start, end) == list(range(100, 300))
        assert one.latestOffset(end, ALL) == end
        client.xack("out", "g", *ids[:50])
        client.xclaim("out", "g", "spark", 0, ids[50:100])
        for n in (300, 301):
            client.xadd("out", {"n": n})
        after = one.latestOffset(end, ALL)
        one.batches.worker.wait()
        assert one.partitions(end, after)
        assert client.xpending("out", "g")["pending"] == 0
        if trim.endswith("connection"):
            one.batches._run = (
                one.batches._run.unknown()
            )  # as a broken connection does: the commit is carried out again
        one.commit(end)
        sweep(server, trim, 302)
        assert [n for n in sorted(numbers(server)) if n < 300] == list(range(50, 300))
        assert sorted(read(one, end, after)) == [*range(50, 100), 300, 301]
        last = one.latestOffset(after, ALL)
        assert one.latestOffset(last, ALL) == last
        sweep(server, trim, 303)
        assert [n for n in sorted(numbers(server)) if n < 302] == []
    finally:
        forget_all()


def sweep(server: Server, trim: str, value: int) -> None:
    """A sink with trim=acked appends a row; or a query of another group with onCommit=delete reads all there is."""
    append([frame([value])], options(server.url, trim="acked", approximate="false"), None)
    if trim == "another query":
        other = another_reader(server, streams="out", group="h", onCommit="delete")
        at = other.initialOffset()
        while (end := other.latestOffset(at, ALL)) != at:
            read(other, at, end)
            at = end
        other.stop()
