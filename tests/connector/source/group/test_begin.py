"""Where a query without a checkpoint begins: what is logged if its group exists and startingOffsets is not used."""

from __future__ import annotations

import logging

import pytest
import redis

from spark_streams.connector.errors import ConsumerTakenError, StreamStateError
from spark_streams.connector.source.stream_reader import StreamReader
from tests.remedies import carry_out
from tools.driving import ALL, add, another_reader, drain, forget_all, read, reader, stop_all
from tools.sending import at_each_point
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
        f"group 'g' already exists on stream 's'. The query reads what is pending for it, and goes on after "
        f"entry {ids[-1]}, where the group stands. startingOffsets is not used"
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


@pytest.mark.parametrize("names", [{"streams": "s,t,empty"}, {"streams": None, "streamsPattern": "*"}])
def test_a_new_group_at_latest_reports_the_entries_before_it(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture, names: dict[str, str]
) -> None:
    add(client, 5)
    add(client, 2, "t")
    options = {**names, "startingOffsets": "latest"}
    assert begun(reader(server, **options)) == []
    [line] = [message for message in warnings.messages if "is new" in message]
    assert line.startswith(
        "group 'g' is new and begins at the end of stream 's' and 1 more stream (startingOffsets=latest): 7 entries "
        "lie before it and are not read. startingOffsets=earliest reads them"
    )
    # As the line says, for the stream that it names.
    stop_all()
    carry_out(server, line)
    assert begun(reader(server, **options)) == [list(range(5))]
    warnings.clear()
    assert begun(reader(server, group="h", streams="s")) == [list(range(5))]
    assert not any("is new" in message for message in warnings.messages)


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


def refused(one: StreamReader) -> str:
    """The error of a query's first trigger."""
    at = one.initialOffset()
    with pytest.raises(StreamStateError) as error:
        one.latestOffset(at, ALL)
    stop_all()
    return str(error.value)


@pytest.mark.parametrize("no_ack", ["false", "true"])
def test_a_new_checkpoint_restarts_the_group(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture, no_ack: str
) -> None:
    """Also entries that are pending for the query are read once."""
    add(client, 9)
    options = {"onNewCheckpoint": "restart", "noAck": no_ack}
    assert begun(reader(server, **options)) == [list(range(9))]
    stop_all()
    if no_ack == "false":
        add(client, 3, first=9)
        unread = reader(server)
        unread.latestOffset(unread.initialOffset(), ALL)
        stop_all()
        assert client.xpending("s", "g")["pending"] == 3
    else:
        add(client, 3, first=9)
    warnings.clear()
    assert begun(reader(server, **options)) == [list(range(12))]
    assert unused_messages(warnings) == []
    [group] = client.xinfo_groups("s")
    assert (group["entries-read"], group["pending"]) == (12, 0)


def test_a_restart_to_a_later_position_drops_the_pending_entries(server: Server, client: redis.Redis) -> None:
    ids = add(client, 9)
    unread = reader(server, maxEntriesPerTrigger="4")
    unread.latestOffset(unread.initialOffset(), ALL)
    stop_all()
    assert client.xpending("s", "g")["pending"] > 0
    assert begun(reader(server, onNewCheckpoint="restart", startingOffsets=ids[6])) == [[7, 8]]
    assert client.xpending("s", "g")["pending"] == 0


def test_a_restart_is_of_streams_that_the_option_names(server: Server, client: redis.Redis) -> None:
    for stream in ("s", "t"):
        add(client, 3, stream)
    options = {"streams": "s,t", "onNewCheckpoint": "restart"}
    both = reader(server, startingOffsets="earliest", **options)
    assert sum(map(len, begun(both))) == 6
    stop_all()
    assert begun(reader(server, startingOffsets='{"t": "earliest"}', **options)) == [[0, 1, 2]]


def test_a_checkpoint_is_not_restarted(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server, onNewCheckpoint="restart")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    read(one, at, end)
    stop_all()
    add(client, 2, first=5)
    again = reader(server, onNewCheckpoint="restart")
    again.initialOffset()  # Spark asks for it in every run (S2)
    assert drain(again, start=end) == [[5, 6]]


@pytest.mark.in_turn
def test_a_killed_restart_is_repeated(server: Server, client: redis.Redis) -> None:
    def begin() -> None:
        client.flushall()
        add(client, 5)
        begun(reader(server))
        stop_all()

    def act() -> None:
        forget_all()
        client.delete("rstream:lease:{s}:g:spark")  # of the killed run
        one = reader(server, onNewCheckpoint="restart")
        one.latestOffset(one.initialOffset(), ALL)

    def check() -> None:
        stop_all()
        assert begun(reader(server, onNewCheckpoint="restart")) == [list(range(5))]
        stop_all()

    assert at_each_point(begin, act, check) > 5


def test_a_group_that_others_read_from_is_not_restarted(server: Server, client: redis.Redis) -> None:
    """Neither stream is changed."""
    for stream in ("s", "t"):
        add(client, 3, stream)
    begun(reader(server, streams="s,t"))
    stop_all()
    client.xgroup_createconsumer("t", "g", "bob")
    before = [client.xinfo_groups(stream) for stream in ("s", "t")]
    line = refused(reader(server, streams="s,t", onNewCheckpoint="restart"))
    assert "[RSTREAM_GROUP_SHARED] stream 't': onNewCheckpoint=restart cannot set group 'g'" in line
    assert "consumer 'bob' reads too" in line
    assert [client.xinfo_groups(stream) for stream in ("s", "t")] == before
    client.xgroup_delconsumer("t", "g", "bob")
    assert sum(map(len, begun(reader(server, streams="s,t", onNewCheckpoint="restart")))) == 6


def test_a_running_query_is_not_restarted(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    running = reader(server)
    begun(running)
    with pytest.raises(ConsumerTakenError):
        another_reader(server, onNewCheckpoint="restart").initialOffset()


def test_streams_of_a_pattern_are_restarted(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    add(client, 3, "o:2")
    assert sum(map(len, begun(reader(server, streamsPattern="o:*")))) == 6
    stop_all()
    add(client, 2, "o:3", first=10)
    again = reader(server, streamsPattern="o:*", onNewCheckpoint="restart")
    assert sorted(n for batch in begun(again) for n in batch) == [0, 0, 1, 1, 2, 2, 10, 11]


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


@pytest.mark.parametrize("names", [{}, {"streams": None, "streamsPattern": "s*"}])
def test_a_query_with_a_checkpoint_whose_group_was_deleted_is_told_of_no_new_group(
    server: Server, client: redis.Redis, warnings: pytest.LogCaptureFixture, names: dict[str, str]
) -> None:
    """Spark asks it where it would begin (S2). The advice for a new group would lose entries: the error has the right
    one."""
    options = {"startingOffsets": "latest", **names}
    one = reader(server, **options)
    client.xadd("s", {"n": 0})
    start = one.initialOffset()
    one.latestOffset(start, ALL)
    add(client, 3)
    end = one.latestOffset(start, ALL)
    read(one, start, end)
    one.commit(end)
    client.xgroup_destroy("s", "g")
    one = reader(server, **options)
    warnings.clear()
    one.initialOffset()
    with pytest.raises(StreamStateError, match="no longer has group"):
        one.latestOffset(end, ALL)
    assert [line for line in warnings.messages if "is new" in line] == []
