"""The server is away when a task begins, when a query starts, in the midst of either: it is waited for; but where
nobody has ever been connected, the address may be wrong, and the error comes soon."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import RetriesExhaustedError, ServerUnreachableError
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader, infer_schema
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import EntriesPartition, StreamReader
from spark_streams.connector.source.task.fetcher import Fetcher
from spark_streams.connector.wire.address import Patience
from tests.proxy import Proxy
from tools import driving
from tools.driving import ALL, SCHEMA, add, drain, read
from tools.patience import with_patience
from tools.servers.server import Server

SHORT = 0.2  # seconds that a first connection is waited for here
LONG = 0.5  # that the server is away
# A first connection is not waited for as long as the server is away, and nobody sleeps long when it is back.
HASTY = Patience(first_connection=SHORT, longest_pause=0.05)
PATIENT = replace(HASTY, first_connection=30.0)


def reader(server: Server, patience: Patience = HASTY, **options: str) -> StreamReader:
    return driving.reader(server, patience=patience, **options)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as made:
        yield made


@pytest.fixture
def behind(server: Server, proxy: Proxy) -> Server:
    """The server as somebody sees it behind the proxy."""
    return Server(server.kind, proxy.url)


def batch_reader(server: Server, patience: Patience = HASTY) -> BatchReader:
    checked = with_patience(BatchSourceOptions.parse({"url": server.url, "streams": "s"}), patience)
    return BatchReader(checked, Columns(SCHEMA, True, checked.mode))


def test_a_task_that_begins_while_the_server_is_away_waits_for_it(
    behind: Server, proxy: Proxy, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 50)
    one = reader(behind)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    shares = one.partitions(start, end)
    caplog.clear()
    proxy.away(LONG)
    assert [row["n"] for share in shares for batch in one.read(share) for row in batch.to_pylist()] == list(range(50))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2, "one line, however often it was tried, and one when it is back"
    assert told[1].startswith(f"the stream server at {behind.url} is back after ")
    assert told[0].startswith(f"reading for group 'g' at {behind.url}: no stream server answers")
    narrowed = [EntriesPartition(share.task, replace(share.batch, narrowed=True)) for share in shares]
    proxy.away(LONG)
    assert [row["n"] for share in narrowed for batch in one.read(share) for row in batch.to_pylist()] == list(range(50))


def test_notes_wait_for_a_server_that_went_away_while_the_task_had_no_need_of_it(
    behind: Server, proxy: Proxy, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 20)
    client.xadd("s", {"n": "bad"})
    one = reader(behind, mode="DEADLETTER", deadLetterStream="dead")
    pages = Fetcher.pages

    def leaving(self: Fetcher) -> Iterator[Any]:
        found = list(pages(self))
        proxy.away(LONG)
        yield from found

    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    with monkeypatch.context() as patched:
        patched.setattr(Fetcher, "pages", leaving)
        assert read(one, start, end) == list(range(20))
    one.latestOffset(end, ALL)
    assert client.xlen("dead") == 1


def test_a_query_that_is_started_again_while_the_server_is_away_waits_for_it(
    behind: Server, proxy: Proxy, client: redis.Redis
) -> None:
    """Spark's first call speaks of the checkpoint: of a committed batch, or of one that is to be run again."""
    add(client, 30)
    one = reader(behind, maxEntriesPerTrigger="20")
    start = one.initialOffset()
    end = one.latestOffset(start, one.getDefaultReadLimit())
    assert read(one, start, end) == list(range(20))
    again = reader(behind)
    proxy.away(LONG)
    assert read(again, start, end) == list(range(20))
    later = reader(behind)
    proxy.away(LONG)
    assert read(later, end, later.latestOffset(end, ALL)) == list(range(20, 30))


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_run_to_the_end_that_is_started_again_while_the_server_is_away_waits_for_it(
    behind: Server, proxy: Proxy, client: redis.Redis, unfinished: bool
) -> None:
    """AvailableNow: the end of the run is asked for before Spark has told of its checkpoint."""
    add(client, 30)
    one = reader(behind)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    add(client, 10, first=30)
    again = reader(behind)
    proxy.away(LONG)
    again.prepareForTriggerAvailableNow()
    if unfinished:
        assert read(again, start, end) == list(range(30))
        add(client, 5, first=1000)
    last = again.latestOffset(end, ALL)
    assert read(again, end, last) == list(range(30, 40))
    add(client, 5, first=1000)
    assert again.latestOffset(last, ALL) == last, "what came later is not read"


def test_a_first_start_waits_for_a_moment_and_then_says_that_nobody_answers(
    behind: Server, proxy: Proxy, client: redis.Redis
) -> None:
    add(client, 5)
    proxy.away(SHORT)
    assert drain(reader(behind, PATIENT)) == [[0, 1, 2, 3, 4]]
    proxy.away(60)
    for begin in (
        lambda: reader(behind, group="h").initialOffset(),
        lambda: batch_reader(behind).partitions(),
        lambda: infer_schema(batch_reader(behind)._options),
    ):
        begun = time.monotonic()
        with pytest.raises(ServerUnreachableError, match=f"no stream server answers at {behind.url}"):
            begin()
        assert SHORT <= time.monotonic() - begun < HASTY.limit / 2
    again = reader(behind, group="h")
    again.prepareForTriggerAvailableNow()
    with pytest.raises(ServerUnreachableError):
        again.initialOffset()


def test_a_server_that_stays_away_from_a_query_that_knew_it_ends_it_after_a_minute(
    behind: Server, proxy: Proxy, client: redis.Redis
) -> None:
    add(client, 5)
    one = reader(behind, replace(HASTY, limit=2 * SHORT))
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    shares = one.partitions(start, end)
    proxy.away(60)
    with pytest.raises(RetriesExhaustedError, match="reading for group 'g' at .* was tried for [01] s without success"):
        list(one.read(shares[0]))


def test_what_cannot_pass_is_not_waited_for(client: redis.Redis, server: Server, tmp_path: Path) -> None:
    """An engine that cannot be started stays so."""
    file = tmp_path / "file"
    file.write_text("in the way")
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    waited: list[float] = []
    other = reader(Server("engine", f"embedded://{file}"), replace(HASTY, sleep=waited.append))
    with pytest.raises(ServerUnreachableError, match="the bundled engine at .* cannot be used: cannot use"):
        other.latestOffset(start, ALL)
    assert waited == []


def test_a_batch_read_waits_for_a_server_that_was_there_when_it_was_planned(
    behind: Server, proxy: Proxy, client: redis.Redis
) -> None:
    add(client, 50)
    one = batch_reader(behind, PATIENT)
    proxy.away(SHORT)
    shares = one.partitions()
    proxy.away(LONG)
    copy, share = pickle.loads(pickle.dumps((one, shares[0])))
    assert [row["n"] for batch in copy.read(share) for row in batch.to_pylist()] == list(range(50))


def test_planning_a_batch_read_goes_on_where_the_connection_breaks(
    behind: Server, proxy: Proxy, client: redis.Redis
) -> None:
    add(client, 50)
    proxy.cut("down", 150)
    one = batch_reader(behind)
    shares = one.partitions()
    assert proxy.cut_so_far == 1
    assert [row["n"] for batch in one.read(shares[0]) for row in batch.to_pylist()] == list(range(50))
