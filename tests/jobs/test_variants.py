"""Other ways to set the jobs up: the source types the columns, windows of event time; both servers in one Spark."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.jobs.work import Work
from tests.servers import Server

pytestmark = pytest.mark.spark

# hour and minute of an entry, its carrier, its departure time.
ENTRIES = [
    ("10:05", "UA", "5"), ("10:40", "UA", "7"), ("10:50", "AA", "9"), ("11:20", "UA", "noon"), ("11:30", "UA", "1"),
    ("12:30", "AA", ""), ("10:59", "AA", "2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def works(
    engine_server: Server, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Work]:
    works = {}
    jobs: list[list[str]] = []
    for server in (engine_server, request.getfixturevalue("redis_server")):
        with server.client() as client:
            client.flushall()
            for time, carrier, departed in ENTRIES:
                fields = {"carrier": carrier, "time_hour": f"2013-01-01T{time}:00", "dep_time": departed}
                client.xadd("flights", {name: value for name, value in fields.items() if value})
        work = works[server.kind] = Work(tmp_path_factory.mktemp(server.kind), server)
        url = f"url={server.url}"
        typed = ("source.mode=DEADLETTER", "source.deadLetterStream=flights:unfit", 'parquet.partition_by=["carrier"]')
        windows = ("columns.time_hour=TIMESTAMP", "aggregate.event_time=time_hour", "aggregate.window=1 hour")
        final = ("aggregate.watermark=10 minutes", "aggregate.emit=final", 'aggregate.keys=["carrier"]')
        values = ("aggregate.where=true", "aggregate.values.flights=count(*)", "source.maxEntriesPerTrigger=6")
        jobs += [
            work.arguments("etl", url, *typed),
            work.arguments("aggregate", url, *windows, *final, *values),
        ]
    with work:
        work.start(*jobs).finish()
    return works


@pytest.fixture(params=["engine", "redis"])
def work(request: pytest.FixtureRequest, works: dict[str, Work]) -> Work:
    return works[request.param]


def test_the_source_types_the_columns_of_an_etl(work: Work) -> None:
    """source.mode: what does not fit moves to the source's own dead-letter stream; the rules go on top of it."""
    told = work.summary("etl")
    assert (told["entries"], told["parquet"], told["dead"], told["moved_by_source"]) == (6, 5, 1, 1)
    assert sorted(work.parquet("flights")["dep_time"].to_pylist()) == [1, 2, 5, 7, 9]
    with work.server.client(decode_responses=True) as client:
        unfit = [fields for _, fields in client.xrange("flights:unfit")]
        dead = [fields for _, fields in client.xrange("flights:dead")]
    assert [(letter["dep_time"], letter["dl.reason"]) for letter in unfit] == [("noon", "decode")]
    assert [(letter["dl.reason"], letter["dl.stage"]) for letter in dead] == [("no departure time", "etl")]


def test_windows_are_emitted_once_when_they_are_final(work: Work) -> None:
    """The watermark ends at 12:20, so the window of 12:00 is still open."""
    with work.server.client(decode_responses=True) as client:
        rows = [fields for _, fields in client.xrange("delays")]
    assert Counter((row["window_start"][11:16], row["carrier"], row["flights"]) for row in rows) == Counter([
        ("10:00", "UA", "2"), ("10:00", "AA", "2"), ("11:00", "UA", "2"),
    ])  # fmt: skip
    assert work.summary("aggregate")["groups"] == len(rows)
    assert rows[0]["window_end"][11:16] > rows[0]["window_start"][11:16]
