"""The observer tells an acknowledgement before the commit from one after it, and reads what strangers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from spark_streams.connector.wire.address import Address
from spark_streams.operations.verify.checkpoint_log import CheckpointLog
from spark_streams.operations.verify.history import Added, Outcome
from spark_streams.operations.verify.judge import Fault, Judgement, judge
from spark_streams.operations.verify.observer import RunObserver
from spark_streams.operations.verify.running_query import BAD, RunPlan
from tools.servers.server import Server

STREAM, GROUP = "run:in:0", "run"
ENTRIES = 4  # the last of them is bad


class Run:
    """A query that has read ENTRIES, and has written its rows and its dead letter."""

    def __init__(self, server: Server, client: redis.Redis, folder: Path) -> None:
        self.client, self._url, self._folder = client, server.url, folder
        self.ids = [client.xadd(STREAM, {"p": "p", "n": n if n < ENTRIES - 1 else BAD}) for n in range(ENTRIES)]
        client.xgroup_create(STREAM, GROUP, "0")
        client.xreadgroup(GROUP, "spark", {STREAM: ">"})
        for n, entry in enumerate(self.ids[:-1]):
            client.xadd("run:out", {"p": "p", "n": n, "source": STREAM, "entry": entry})
        client.xadd("run:dead", {"p": "p", "n": BAD, "dl.stream": STREAM, "dl.id": self.ids[-1]})
        at = {STREAM: f"{self.ids[-1]} 1.a-b {ENTRIES} {ENTRIES}"}
        offset = {"format": 1, "group": GROUP, "consumer": "spark", "token": "a-b", "streams": at, "batch": {}}
        (folder / "offsets").mkdir()
        (folder / "commits").mkdir()
        (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        added = [Added(STREAM, ("p", n), Outcome.OK, entry) for n, entry in enumerate(self.ids)]
        self.observer = RunObserver(Address.parse(self._url), RunPlan("run", 1, 60, {}), CheckpointLog(folder), [added])

    def commit(self) -> None:
        (self._folder / "commits" / "0").touch()

    def acknowledge(self, *ids: str) -> None:
        self.client.xack(STREAM, GROUP, *ids)

    def report(self) -> Judgement:
        return judge(self.observer.facts())


@pytest.fixture
def run(server: Server, client: redis.Redis, tmp_path: Path) -> Run:
    return Run(server, client, tmp_path)


def test_an_acknowledgement_after_the_commit_is_right(run: Run) -> None:
    run.commit()
    run.acknowledge(*run.ids)
    assert not run.report()
    assert run.observer.seen_in_time == 0  # its thread did not run
    assert not run.observer.lost_by_server


def test_an_acknowledgement_before_the_commit_is_early(run: Run) -> None:
    run.acknowledge(run.ids[0])
    report = run.report()
    assert report.named(Fault.EARLY) == [f"{STREAM} {run.ids[0]}"]
    assert report.named(Fault.PENDING) == [f"{STREAM} {entry}" for entry in run.ids[1:]]


def test_a_bad_entry_is_acknowledged_with_its_dead_letter(run: Run) -> None:
    """At once, before the commit."""
    run.acknowledge(run.ids[-1])
    assert not run.report().named(Fault.EARLY)


def test_an_add_whose_reply_was_lost_is_counted_as_an_entry(run: Run) -> None:
    """Nobody knows its ID but the stream."""
    entry = run.client.xadd(STREAM, {"p": "p", "n": ENTRIES})
    run.report()
    assert run.observer.unconfirmed == {(STREAM, entry)}


def test_an_entry_that_the_server_has_lost_is_told_apart(run: Run) -> None:
    run.commit()
    run.acknowledge(*run.ids)
    run.client.xdel(STREAM, run.ids[1])
    run.client.delete("run:dead")
    report = run.report()
    assert report.named(Fault.LOST) == [f"p {ENTRIES - 1}"]
    assert run.observer.lost_by_server == {(STREAM, run.ids[1])}


@pytest.mark.parametrize("fields", [{"a": "b"}, {"p": b"\xff", "n": "9" * 5000, "source": STREAM, "entry": "x"}])
def test_what_a_stranger_writes_into_the_sink_is_a_row_that_nobody_sent(run: Run, fields: dict[str, str]) -> None:
    run.commit()
    run.acknowledge(*run.ids)
    run.client.xadd("run:out", fields)
    assert len(run.report().named(Fault.PHANTOM)) == 1
