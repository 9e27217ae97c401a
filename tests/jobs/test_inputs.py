"""What a job tells of a pattern: the streams that its query reads, and what waits in them."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.options import SOURCE, parse_options
from tests.deadletter.making import fill
from tests.jobs.work import ROOT
from tests.servers import Server


def test_letters_do_not_wait_to_be_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "jobs"), *sys.path])
    query = importlib.import_module("_query")
    with server.client() as client:
        for n in range(7):
            client.xadd("flights:1", {"n": n})
        client.xadd("flights:gone:parked", {"n": 1})
    fill(server, 5, into="flights:dead")
    given = {"url": server.url, "streamsPattern": "flights*", "group": "etl"}
    given |= {"mode": "DEADLETTER", "deadLetterStream": "flights:gone"}
    job: Any = SimpleNamespace(get=lambda key, default=None: default)
    made = query.Query(job, parse_options(given, SOURCE, "source"))
    assert (made.streams, made.waiting) == (["flights:1"], 7)
