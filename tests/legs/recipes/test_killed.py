"""Recipes whose process is killed: state, windows, hashes and a Delta table are what all entries, read once, give."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.legs.killed import Program
from tests.legs.recipes.feed import READ, Feed
from tools.machine_time import machine_seconds
from tools.servers.server import Server

PATIENCE = 240.0  # seconds

pytestmark = [
    pytest.mark.long,  # that batches which are run again give the same is test_state.py, test_tables.py, test_hashes.py
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the last windows wait for a later run"),
]


def test_what_is_there_in_the_end_is_what_a_batch_gives(server: Server, tmp_path: Path) -> None:
    """Killed while each query has committed a batch, or some, and is in the midst of others; then run to the end."""
    with server.client(decode_responses=True) as client:
        feed = Feed(client)
        feed.round()
        program = Program("tests.legs.recipes.killed_program", server.url, tmp_path, READ)
        program.start()
        try:
            deadline = machine_seconds() + PATIENCE
            while min(map(program.commits, READ)) < 1:
                assert program.is_alive(), program.said()
                assert machine_seconds() < deadline, program.said()
                feed.round()
                time.sleep(0.2 + random.random() / 2)
        finally:
            program.kill()
        before = {query: program.commits(query) for query in READ}
        feed.round()
        feed.close_the_windows()
        program.drain(PATIENCE)
        assert all(program.commits(query) > count for query, count in before.items())
        for query in READ:
            feed.check(query, tmp_path)
