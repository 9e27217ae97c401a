"""What a job tells of a pattern: the streams that its query reads, and what waits in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_streams.jobs.query import Query
from spark_streams.options.source_options import SourceOptions
from tests.deadletter.making import fill
from tools.servers.server import Server


def test_dead_letters_do_not_count_as_lag(server: Server) -> None:
    with server.client() as client:
        for n in range(7):
            client.xadd("flights:1", {"n": n})
        client.xadd("flights:gone:parked", {"n": 1})
    fill(server, 5, into="flights:dead")
    given = {"url": server.url, "streamsPattern": "flights*", "group": "etl"}
    given |= {"mode": "DEADLETTER", "deadLetterStream": "flights:gone"}
    job: Any = SimpleNamespace(get=lambda key, default=None: default, check=False)
    made = Query(job, SourceOptions.parse(given))
    assert (made.streams, made.waiting) == (["flights:1"], 7)
