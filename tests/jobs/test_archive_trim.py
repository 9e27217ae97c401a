"""What the archive trims: all that every group has acknowledged, however much that is, and nothing else."""

from __future__ import annotations

import contextlib
import time

import pytest
from rich.console import Console

from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.archiving import Trim
from spark_streams.jobs.parts.source_and_sink import Source
from tests.trimming import nodes_of_one_entry
from tools.servers.server import Server

ENTRIES = 25_000  # a server trims 10,000 at a time


def made(server: Server, keep: int | None) -> Trim:
    """The trimming of an archive of stream s."""
    rule = {"every": "1ms", **({} if keep is None else {"keep_entries": keep})}
    job = Job("archive", {"url": server.url, "source": {"streams": "s", "group": "archive"}, "trim": rule}, Console())
    trim = Trim(job, Source(job))
    trim.open(["s"])
    return trim


@pytest.mark.parametrize(
    ("keep", "exactly", "left"), [(None, True, 1000), (None, False, 1000), (3000, True, 3000), (500, True, 1000)]
)
def test_all_that_is_acknowledged_goes(server: Server, keep: int | None, exactly: bool, left: int) -> None:
    with server.client() as client, nodes_of_one_entry(server) if exactly else contextlib.nullcontext():
        with client.pipeline(transaction=False) as sent:
            for number in range(ENTRIES):
                sent.xadd("s", {"n": number})
            sent.execute()
        for group in ("archive", "other"):
            client.xgroup_create("s", group, "0")
            client.execute_command(
                "XREADGROUP", "GROUP", group, "c", "COUNT", ENTRIES - 1000, "NOACK", "STREAMS", "s", ">"
            )
        trim = made(server, keep)
        time.sleep(0.01)
        trim.trim_if_due()
        node = 0 if exactly else 100
        assert left <= client.xlen("s") <= left + node
        assert trim.summary()["trimmed"] == ENTRIES - client.xlen("s")


@pytest.mark.usefixtures("small_nodes")
def test_it_says_why_nothing_was_trimmed(server: Server) -> None:
    def why(keep: int | None = None) -> object:
        trim = made(server, keep)
        trim.trim()
        return trim.summary().get("not_trimmed", "")

    with server.client() as client:
        for group in ("archive", "other"):
            client.xgroup_create("s", group, "0", mkstream=True)
        assert why() == ""
        for n in range(5):
            client.xadd("s", {"n": n}, id=f"{n + 1}-0")
        client.execute_command("XREADGROUP", "GROUP", "archive", "spark", "NOACK", "STREAMS", "s", ">")
        assert why() == "s: group 'other' has not read 5 entries"
        client.xreadgroup("other", "bob", {"s": ">"})
        assert why() == "s: group 'other' has not acknowledged 5 entries"
        client.xack("s", "other", *[f"{n + 1}-0" for n in range(5)])
        assert why(keep=10) == "s: [trim] keeps its 5 entries (keep_entries, keep_for)"
        assert why() == ""
        assert client.xlen("s") == 0
