"""What the docs say a user must be allowed is enough, for the source and for the sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.sink.batch import Batch
from spark_streams.sink.batch_commit import pass_over
from spark_streams.sink.runs import begin_job, begin_run
from tests.servers import Server
from tests.sink.writing import batch_of, close, frame, numbers, options, write
from tests.source.limited_user import read_in_all_ways

OPTIONS = (Path(__file__).resolve().parents[2] / "docs" / "options.md").read_text(encoding="utf-8")


@pytest.fixture
def limited(redis_server: Server) -> Iterator[Server]:
    """The same server for a user with OPTIONS's permissions. (The bundled engine has one user only.)"""
    allowed = re.search(r"needs\n`(\+@[^`]+)` on", OPTIONS)
    assert allowed is not None
    with redis_server.client() as admin:
        admin.flushall()
        keys = [word for key in ("s", "o:*", "out", "dead", "rstream:*") for word in (f"~{key}",)]
        admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *keys, *allowed[1].split())
        yield Server("redis", redis_server.url.replace("://", "://limited:pw@"))
        admin.acl_deluser("limited")


def test_a_source_and_a_sink_of_a_limited_user(limited: Server, redis_server: Server) -> None:
    read_in_all_ways(limited, redis_server)
    checked = options(limited.url, maxlen="10", trim="acked")
    for batch in (Batch("q", 0, begin_run(checked.address), expires=False), begin_job(checked.address)):
        close(checked, batch, write([frame(range(100))], checked, batch))
    pass_over(checked.address, batch_of(1))
    assert sum(numbers(redis_server).values()) == 200
