"""The commit mark comes after the last XACK, and hides no mark of an operator."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.trigger import observe
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import NEVER_AHEAD, add, read, reader
from tools.sending import KilledError
from tools.servers.server import Server

MARK = committed_key("s", "g", "spark")


@pytest.mark.parametrize("has_mark", [False, True], ids=["as it is", "if the mark came first"])
def test_a_replica_without_the_last_xack_has_no_mark_of_that_batch(
    server: Server, client: redis.Redis, has_mark: bool
) -> None:
    """The mark that is missing makes the run acknowledge the batch again. With it, they would be old entries."""
    add(client, 6)
    query = reader(server, limits=NEVER_AHEAD)
    two = ReadMaxRows(2)
    start = query.initialOffset()
    first = query.latestOffset(start, two)
    assert read(query, start, first) == [0, 1]
    before = client.get(MARK)
    second = query.latestOffset(first, two)
    assert read(query, first, second) == [2, 3]
    query.batches.worker.wait()
    ids = [entry_id for entry_id, _ in client.xrange("s", count=2)]
    assert client.get(MARK) != before
    until = Offset.from_json(first).new["s"].until
    client.execute_command("XCLAIM", "s", "g", "spark", 0, *ids, "TIME", until, "FORCE", "JUSTID")  # their XACK is lost
    if not has_mark:
        client.set(MARK, str(before))
    third = query.latestOffset(second, two)
    assert read(query, second, third) == ([0, 1] if has_mark else [4, 5])


@pytest.mark.parametrize("no_ack", ["false", "true"])
def test_a_kill_after_the_xack_hides_no_seek_of_an_operator(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, no_ack: str
) -> None:
    """The first trigger after `rstream groups seek` acknowledges the committed batch, then the query moves."""
    add(client, 4)
    query = reader(server, noAck=no_ack)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(4))
    assert read(query, start, end) == [0, 1, 2, 3]
    client.xgroup_setid("s", "g", "0")
    client.set(MARK, "0-0 0.seek")

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(observe, "carry_out", killed)
        dying = reader(server, noAck=no_ack)
        with pytest.raises(KilledError):
            dying.latestOffset(end, ReadMaxRows(4))
    assert client.get(MARK) == "0-0 0.seek"
    again = reader(server, noAck=no_ack)
    assert read(again, end, again.latestOffset(end, ReadMaxRows(4))) == [0, 1, 2, 3]


@pytest.mark.parametrize("more", [0, 3], ids=["at once", "beside the next batch"])
def test_a_warning_tells_what_others_have_claimed_from_a_written_batch(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    """It is pending for them, and comes again."""
    add(client, 4)
    query = reader(server)
    start = query.initialOffset()
    first = query.latestOffset(start, ReadMaxRows(4))
    assert read(query, start, first) == [0, 1, 2, 3]
    client.xautoclaim("s", "g", "bob", 0, "0-0", 3)
    add(client, more, first=4)
    second = query.latestOffset(first, ReadMaxRows(4))
    query.latestOffset(second, ReadMaxRows(4))
    told = [record.getMessage() for record in caplog.records if "written entries" in record.getMessage()]
    assert told == [
        "3 of 4 written entries of group 'g' were claimed or acknowledged by others: claimed ones come again"
    ]
    assert client.xpending("s", "g")["consumers"][0] == {"name": "bob", "pending": 3}
