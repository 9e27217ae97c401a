"""Tasks of one run that write to one stream at the same time: none makes another send its chunk again."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import redis

from spark_streams.connector.sink import ledger_view
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_job
from spark_streams.connector.sink.ledger import JOB_SECONDS
from spark_streams.connector.wire.connection import Connection
from tests.connector.sink.writing import batch_of, close, frame, numbers, options, write
from tools.sending import before_sending
from tools.servers.server import Server

ROWS = list(range(80))


def of_job(server: Server) -> Batch:
    return begin_job(options(server.url).address)


def of_query(server: Server) -> Batch:
    return batch_of(0)


def transactions(client: redis.Redis) -> int:
    """How many were carried out, or tried."""
    return int(cast(dict[str, dict[str, int]], client.info("commandstats"))["cmdstat_exec"]["calls"])


@pytest.mark.parametrize("begun", [of_job, of_query])
def test_the_chunks_of_one_do_not_stop_those_of_another(server: Server, begun: Callable[[Server], Batch]) -> None:
    """One has sent its questions and its rows; before it says EXEC the other writes a chunk."""
    client, checked, batch = server.client(), options(server.url, chunkSize="40"), begun(server)
    results = [write([frame(ROWS[:40])], checked, batch, 0)]
    before = transactions(client)

    def other(_server: Connection, _request: bytes) -> None:
        results.append(write([frame([1000])], checked, batch, 2))

    with before_sending(b"EXEC", act=other, times=1):
        results.append(write([frame(ROWS[40:])], checked, batch, 1))
    assert transactions(client) - before == 2
    assert sorted(numbers(server).elements()) == [*ROWS, 1000]
    close(checked, batch, *results)


def test_what_a_job_leaves_expires_also_when_it_takes_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client, checked = server.client(), options(server.url, chunkSize="10")
    batch = of_job(server)
    write([frame(ROWS[:40])], checked, batch, 0)
    keys = client.keys(f"rstream:sink:*{batch.query}*")
    assert len(keys) >= 4
    assert all(client.ttl(key) > JOB_SECONDS - 60 for key in keys), [(key, client.ttl(key)) for key in keys]
    head = f"rstream:sink:{{out}}:{batch.query}"
    for key in (head, f"{head}:parts"):
        client.expire(key, 1000)
    write([frame(ROWS[40:60])], checked, batch, 1)
    assert client.ttl(head) <= 1000
    monkeypatch.setattr(ledger_view, "_PROLONG", 0.0)
    write([frame(ROWS[60:])], checked, batch, 2)
    assert all(client.ttl(key) > JOB_SECONDS - 60 for key in (head, f"{head}:parts"))
