"""What a job tells of a pattern: the streams that its query reads, and what waits in them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.query import Query
from spark_streams.jobs.parts.source_and_sink import Source
from tests.connector.deadletter.making import fill
from tools.servers.server import Server


def test_dead_letters_do_not_count_as_lag(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        for n in range(7):
            client.xadd("flights:1", {"n": n})
        client.xadd("flights:gone:parked", {"n": 1})
    fill(server, 5, into="flights:dead")
    source = {"streamsPattern": "flights*", "group": "etl", "mode": "DEADLETTER", "deadLetterStream": "flights:gone"}
    config = {"url": server.url, "source": source, "job": {"checkpoint": str(tmp_path / "none")}}
    job = Job("etl", config, Console())
    made = Query(job, Source(job))
    assert (made.streams, made.waiting) == (["flights:1"], 7)
