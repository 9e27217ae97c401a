"""An archive before the streams: plans have it, and what is lost or read twice at the seam is seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from spark_streams.connector.source import history_reader
from spark_streams.connector.source.archive import history
from tests.simulation.test_sees import more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import ARCHIVE
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step

SERVER = ProcessServer()


def archived(*steps: Step | str, **options: str) -> Plan:
    """Eight entries, six of them archived: three are trimmed, and the fifth one is missing."""
    first = [more(3), Step("archive", amount=0.75, how=0.5, choice=0.1)]
    return plan(*first, *steps, archivePath=ARCHIVE, **options)


@pytest.fixture
def failures() -> Iterator[Callable[[Plan], set[str]]]:
    """A function that runs a plan, and returns the kinds of its failures without details."""
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        yield lambda given: {one.kind.split(" | ")[0] for one in run(SERVER, client, given).failures}


def test_plans_read_what_only_the_archive_has() -> None:
    """What was trimmed, what is missing in between, and what is in both."""
    wanted = {r"[1-9]\d* archived, \['.* trimmed", r"trimmed, \['.* missing", '"history"'}
    told: list[str] = []
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        for made in (made for seed in range(1, 400) if "archivePath" in (made := make(seed)).setup.options):
            assert not run(SERVER, client, made, told.append).failures
            wanted -= {pattern for pattern in wanted if any(re.search(pattern, line) for line in told)}
            if not wanted:
                break
    assert not wanted


@pytest.mark.parametrize("sink", ["recorder", "once"])
def test_a_kill_at_any_moment_reads_each_entry_once(failures: Callable[[Plan], set[str]], sink: str) -> None:
    for after in range(1, 130, 4):
        steps = [Step("kill", after), "trigger", "trigger", more(2), "trigger"]
        assert not failures(archived(*steps, sink=sink, maxEntriesPerTrigger="2")), f"killed after {after} ticks"


def misses_what_is_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history.History, "removed", lambda self: [])


def reads_what_the_stream_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history_reader, "rows_beside", lambda archive, ranges, seen: history_reader.rows_of(archive, ranges))


def reads_no_archive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history_reader, "next_history", lambda archive, found, ends: None)


@pytest.mark.parametrize(
    ("breaks", "kinds"),
    [
        (misses_what_is_missing, {"lost"}),
        (reads_what_the_stream_has, {"twice"}),
        (reads_no_archive, {"lost", "false alarm"}),
    ],
)
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch,
    failures: Callable[[Plan], set[str]],
    breaks: Callable[[pytest.MonkeyPatch], None],
    kinds: set[str],
) -> None:
    given = archived("trigger", "trigger", more(2), "trigger")
    assert not failures(given)
    breaks(monkeypatch)
    assert failures(given) & kinds
