"""What the archive trims: all that every group has acknowledged, however much that is, and nothing else."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from spark_streams.options import SOURCE, parse_options
from spark_streams.sink.trim import Trimming
from tests.jobs.work import ROOT
from tests.servers import Server

ENTRIES = 25_000  # a server trims 10,000 at a time


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Any:
    """jobs/archive.py as a module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "jobs"), *sys.path])
    return importlib.import_module("archive")


@pytest.mark.parametrize(
    ("keep", "approximate", "left"), [(None, False, 1000), (None, True, 1000), (3000, False, 3000), (500, False, 1000)]
)
def test_all_that_is_acknowledged_goes(
    server: Server, archive: Any, keep: int | None, approximate: bool, left: int
) -> None:
    with server.client() as client:
        with client.pipeline(transaction=False) as sent:
            for number in range(ENTRIES):
                sent.xadd("s", {"n": number})
            sent.execute()
        for group in ("archive", "other"):
            client.xgroup_create("s", group, "0")
            client.execute_command(
                "XREADGROUP", "GROUP", group, "c", "COUNT", ENTRIES - 1000, "NOACK", "STREAMS", "s", ">"
            )
        source = parse_options({"url": server.url, "streams": "s", "group": "archive"}, SOURCE, "source")
        trimmer = archive.Trimmer(source, Trimming("acked", keep, None, None, approximate, None), every=0.0)
        trimmer.look()
        node = 100 if approximate else 0
        assert left <= client.xlen("s") <= left + node
        assert trimmer.trimmed == ENTRIES - client.xlen("s")
