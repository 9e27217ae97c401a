"""Dead letters under a pattern: those that queries have written are not read, and no producer can hide a stream."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.deadletter import input_streams
from spark_streams.connector.deadletter.envelope import MARK, RedriveMark, dead_letter_fields
from spark_streams.connector.deadletter.input_streams import Inputs, divide
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader, infer_schema
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.deadletter.making import envelopes, fill
from tools import driving
from tools.driving import ALL, LOOK_EACH_TIME, SCHEMA, add, drain, forget_all, read
from tools.servers.server import Server

PATTERN = {"streamsPattern": "o:*"}
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "o:dead", **PATTERN}
reader = functools.partial(driving.reader, limits=LOOK_EACH_TIME)


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    forget_all()


def batch(server: Server, **options: str) -> list[int]:
    """Column n of spark.read."""
    checked = BatchSourceOptions.parse({"url": server.url, **options})
    one = BatchReader(checked, Columns(SCHEMA, True, checked.mode, checked.column_name_of_corrupt_record))
    return [row["n"] for part in one.partitions() for some in one.read(part) for row in some.to_pylist()]


def test_dead_letters_of_another_query_are_not_read_under_a_pattern(server: Server, client: redis.Redis) -> None:
    """The query's options do not name them: they are another query's, or a job's."""
    add(client, 3, "o:1")
    fill(server, 5, first=100, into="o:dead")
    fill(server, 5, first=200, into="o:dead:parked")
    one = reader(server, **PATTERN)
    assert drain(one) == [[0, 1, 2]]
    assert client.xinfo_groups("o:dead") == client.xinfo_groups("o:dead:parked") == []
    assert sorted(batch(server, **PATTERN)) == [0, 1, 2]
    assert drain(reader(server, streams="o:dead")) == [[100, 101, 102, 103, 104]]  # who names them reads them
    assert sorted(batch(server, streams="o:dead,o:1")) == [0, 1, 2, 100, 101, 102, 103, 104]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_producer_cannot_hide_a_stream(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    """By a first entry that looks like a dead letter. The log names the option that excludes the stream."""
    add(client, 3, "o:1")
    one = reader(server, **PATTERN)
    start = one.initialOffset()
    at = one.latestOffset(start, ALL) if is_late else start
    seen = read(one, start, at) if is_late else []
    fill(server, 2, first=10, into="o:2", has_group=False)
    add(client, 2, "o:2", first=12)
    forget_all()
    assert sorted(seen + [n for batch in drain(reader(server, **PATTERN), start=at) for n in batch]) == [
        0, 1, 2, 10, 11, 12, 13,
    ]  # fmt: skip
    warnings = {record.message for record in caplog.records if "streamsExcept" in record.message}
    assert warnings == {
        "stream 'o:2' matches streamsPattern and begins with a dead letter. The query reads it like any other stream. "
        "To exclude it, set option streamsExcept=o:2"
    }
    assert sorted(batch(server, **PATTERN)) == [0, 1, 2, 10, 11, 12, 13]


@pytest.mark.parametrize("names", ["o:2", "o:2,x", "o:[2-9]", '["o:2"]', "*2"])
def test_an_option_excludes_streams_of_a_pattern(server: Server, client: redis.Redis, names: str) -> None:
    for name, first in (("o:1", 0), ("o:2", 10)):
        add(client, 2, name, first=first)
    assert drain(reader(server, streamsExcept=names, **PATTERN)) == [[0, 1]]
    assert client.xinfo_groups("o:2") == []
    assert sorted(batch(server, streamsExcept=names, **PATTERN)) == [0, 1]


def test_a_stream_with_the_text_of_an_excluding_pattern_ends_no_exclusion(server: Server, client: redis.Redis) -> None:
    """Any producer may create it. The query would then read what it writes, and the sink does not refuse that: it asks
    of its own stream only."""
    for name, first in (("o:1", 0), ("o:out:1", 10)):
        add(client, 2, name, first=first)
    options = {**PATTERN, "streamsExcept": "o:out*"}
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1]
    add(client, 2, "o:out*", first=20)
    assert one.latestOffset(end, ALL) == end
    assert client.xinfo_groups("o:out:1") == []
    assert sorted(batch(server, **options)) == [0, 1]


def test_dead_letters_that_appear_while_the_query_runs_are_not_read(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    one = reader(server, **PATTERN)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    fill(server, 5, into="o:dead")
    add(client, 2, "o:2", first=10)
    after = one.latestOffset(end, ALL)
    assert read(one, end, after) == [10, 11]
    assert sorted(after["streams"]) == ["o:1", "o:2"]
    assert drain(reader(server, **PATTERN), start=after) == []


def test_a_stream_without_entries_is_joined_when_it_has_its_first_one(server: Server, client: redis.Redis) -> None:
    """Until then nobody knows what it will hold. Then it is read from its first entry, also where others begin with
    what comes."""
    for name in ("o:empty", "o:dead", "o:emptied"):
        client.xgroup_create(name, "somebody", id="0", mkstream=True)
    add(client, 1, "o:emptied")
    client.xtrim("o:emptied", 0)
    one = reader(server, startingOffsets="latest", **PATTERN)
    start = one.initialOffset()
    assert start["streams"] == {}
    assert one.latestOffset(start, ALL) == start
    fill(server, 5, into="o:dead")
    add(client, 2, "o:empty", first=10)
    add(client, 2, "o:emptied", first=20)
    assert sorted(drain(one, start=start)[0]) == [10, 11, 20, 21]
    assert [group["name"] for group in client.xinfo_groups("o:dead")] == ["somebody"]


def test_a_stream_that_is_empty_goes_on_being_read_by_a_query_that_has_read_it(
    server: Server, client: redis.Redis
) -> None:
    add(client, 3, "o:1")
    one = reader(server, **PATTERN)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    assert one.latestOffset(end, ALL) == end
    client.xtrim("o:1", 0)
    again = reader(server, **PATTERN)
    assert again.latestOffset(end, ALL) == end
    add(client, 2, "o:1", first=3)
    assert drain(again, start=end) == [[3, 4]]


def test_the_parking_stream_of_the_option_is_known_by_its_name(server: Server, client: redis.Redis) -> None:
    """Also where somebody has put something else first."""
    add(client, 2, "o:1")
    for name in ("o:dead", "o:dead:parked"):
        add(client, 1, name, first=50)
    assert drain(reader(server, **LETTERS)) == [[0, 1]]


def test_dead_letters_of_two_queries_do_not_go_round(server: Server, client: redis.Redis) -> None:
    """Each one's letters match the pattern of both."""
    client.xadd("o:1", {"n": "bad"})
    queries = [{**LETTERS, "group": name, "deadLetterStream": f"o:{name}"} for name in ("a", "b")]
    starts = [None, None]
    for _ in range(3):
        for at, query in enumerate(queries):
            one = reader(server, **query)
            begin = starts[at] or one.initialOffset()
            end = one.latestOffset(begin, ALL)
            if end != begin:
                assert read(one, begin, end) == []
            starts[at] = one.latestOffset(end, ALL)
    assert (client.xlen("o:a"), client.xlen("o:b")) == (1, 1)
    assert [e["stream"] for name in ("o:a", "o:b") for e in envelopes(server, name)] == ["o:1", "o:1"]


@pytest.mark.parametrize(
    ("first", "is_dead_letter"),
    [
        (dead_letter_fields([b"n", b"1"], {"stream": "s"}), True),
        ([b"n", b"1", b"dl.x", b"1"], False),
        ([b"n", b"1", b"dl.stream", b"s"], False),
        ([b"n", b"1", MARK, bytes(RedriveMark(1, "", "dead/1-0"))], False),  # sent back
        (
            [*dead_letter_fields([b"n", b"1"], {"stream": "s"}), MARK, bytes(RedriveMark(1, "", "dead/1-0"))],
            True,
        ),  # to where letters are
    ],
)
def test_the_first_entry_says_what_a_stream_holds(server: Server, first: list[bytes], is_dead_letter: bool) -> None:
    with server.client() as client, Connection(Address.parse(server.url)) as connection:
        client.execute_command("XADD", "one", "*", *first)
        client.xadd("one", {"n": "2"})
        client.xadd("other", {"n": "1"})
        client.execute_command("XADD", "other", "*", *dead_letter_fields([b"n", b"1"], {}))
        client.set("text", "1")
        found = divide(connection, ["one", "other", "text", "nothing"])[0]
    assert found == ({"one"} if is_dead_letter else set())


def test_an_entry_is_looked_at_once_however_often_its_stream_is_found(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be large."""
    add(client, 3, "o:1")
    fill(server, 5, into="o:dead")
    looked: list[list[str]] = []
    honest = input_streams.divide

    def counts(connection: Connection, names: Any, *given: Any) -> Any:
        looked.append(list(names))
        return honest(connection, names, *given)

    monkeypatch.setattr(input_streams, "divide", counts)
    known = Inputs()
    with Connection(Address.parse(server.url)) as connection:
        assert known.filter_inputs(connection, ["o:1", "o:dead", "o:new"]) == ["o:1"]
        assert known.filter_inputs(connection, ["o:1", "o:dead", "o:new"]) == ["o:1"]
        add(client, 1, "o:new")
        assert known.filter_inputs(connection, ["o:1", "o:dead", "o:new"]) == ["o:1", "o:new"]
        client.delete("o:dead")
        assert known.filter_inputs(connection, ["o:1", "o:new"]) == ["o:1", "o:new"]
        add(client, 1, "o:dead")  # another stream by now
        assert known.filter_inputs(connection, ["o:1", "o:dead", "o:new"]) == ["o:1", "o:dead", "o:new"]
    assert looked == [["o:1", "o:dead", "o:new"], ["o:new"], ["o:new"], [], ["o:dead"]]


def test_many_streams_with_large_entries_are_looked_at_a_few_megabytes_at_a_time(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(DEAD_LETTER_LIMITS, page_bytes=100_000)
    for number in range(60):
        client.xadd(f"o:{number}", {"n": "x" * 20_000})
    asked: list[int] = []
    honest = Connection.pipeline

    def counts(self: Connection, commands: Any) -> Any:
        asked.append(len(commands))
        return honest(self, commands)

    with Connection(Address.parse(server.url)) as connection:
        monkeypatch.setattr(Connection, "pipeline", counts)
        assert divide(connection, [f"o:{number}" for number in range(60)], limits)[0] == set()
    assert asked == [20, *[4] * 10]


def test_a_schema_is_not_inferred_from_dead_letters(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    fill(server, 5, into="o:dead")
    checked = BatchSourceOptions.parse({"url": server.url, "inferSchema": "true", **PATTERN})
    assert infer_schema(checked).names == ["n"]
