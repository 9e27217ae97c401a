"""Where a query without a checkpoint begins: what is logged if its group exists and startingOffsets is not used."""

from __future__ import annotations

import logging

import pytest
import redis

from spark_streams.source.stream_reader import StreamReader
from tests.remedies import carry_out
from tools.driving import ALL, add, drain, read, reader, stop_all
from tools.servers.server import Server


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_streams.source")
    return caplog


def begun(one: StreamReader) -> list[list[int]]:
    """The batches of a query without a checkpoint, and of two idle triggers behind them."""
    at = one.initialOffset()
    batches = drain(one, start=at)
    if not batches:
        assert [one.latestOffset(at, ALL) for _ in range(2)] == [at, at]
    return batches


def unused_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "is not used" in message]


def test_the_start_of_a_new_checkpoint_in_an_existing_group_is_reported(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture
) -> None:
    """A notebook cell that is run again, with a temporary checkpoint."""
    ids = add(client, 5)
    assert begun(reader(server)) == [list(range(5))]
    assert unused_messages(warnings) == []
    one = reader(server)
    assert begun(one) == []
    [line] = unused_messages(warnings)
    assert line.startswith(
        f"group 'g' already exists on stream 's'. The query begins after entry {ids[-1]}, where the group stands. "
        "startingOffsets is not used"
    )
    # As the line says.
    stop_all()
    carry_out(server, line)
    assert begun(reader(server)) == [list(range(5))]


def test_a_line_is_logged_once_for_all_streams(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture
) -> None:
    streams = [f"s{n}" for n in range(7)]
    for stream in streams:
        add(client, 3, stream)
    assert sum(map(len, begun(reader(server, streams=",".join(streams))))) == 21
    assert begun(reader(server, streams=",".join(streams))) == []
    [line] = unused_messages(warnings)
    assert "group 'g' already exists on stream 's0' and 6 more streams." in line


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({"startingOffsets": "earliest"}, True),
        ({"startingOffsets": '{"s": "earliest"}'}, True),
        ({"startingTimestamp": "2020-01-01"}, True),
        ({"startingOffsets": "latest"}, True),
        ({"startingOffsets": '{"t": "earliest"}', "streams": "s,t"}, False),  # it says nothing of s
        ({"startingOffsets": "1-0"}, True),
    ],
)
def test_an_unused_starting_option_is_reported(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture, options: dict[str, str], is_told: bool
) -> None:
    ids = add(client, 9)
    client.xgroup_create("s", "g", id=ids[3])
    one = reader(server, **options)
    at = one.initialOffset()
    assert len(read(one, at, one.latestOffset(at, ALL))) == 5
    assert len(unused_messages(warnings)) == is_told


def test_nothing_is_reported_if_the_group_is_at_the_position_of_the_option(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture
) -> None:
    ids = add(client, 9)
    client.xgroup_create("s", "g", id=ids[3])
    client.xtrim("s", minid=ids[4], approximate=False)
    assert begun(reader(server)) == [list(range(4, 9))]
    client.xgroup_create("s", "h", id=ids[-1])
    assert begun(reader(server, group="h", startingOffsets="latest")) == []
    assert unused_messages(warnings) == []


def test_nothing_is_reported_to_a_query_with_a_checkpoint(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture
) -> None:
    add(client, 5)
    one = reader(server)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    read(one, at, end)
    again = reader(server)
    again.initialOffset()  # Spark asks for it in every run (S2)
    assert drain(again, start=end) == []
    assert unused_messages(warnings) == []


def test_streams_of_a_pattern_whose_group_exists_are_reported(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture
) -> None:
    add(client, 3, "o:1")
    add(client, 3, "o:2")
    assert sum(map(len, begun(reader(server, streamsPattern="o:*")))) == 6
    add(client, 2, "o:3", first=10)
    assert begun(reader(server, streamsPattern="o:*")) == [[10, 11]]
    [line] = unused_messages(warnings)
    assert " and 1 more stream." in line
