"""SIGKILL of the driver at every point of a micro-batch, on both servers; a second run drains and all is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.legs.faults.conftest import say
from tools.chaos import killed_driver
from tools.chaos.killed_driver import Killed
from tools.servers.server import skip_without_redis

pytestmark = pytest.mark.spark

# scripts/chaos kills at all of killed_driver.POINTS.
POINTS = ["started", "logged", "written", "commit entry lost", "committed"]


@pytest.fixture(scope="module")
def round_(
    servers: dict[str, str], seed: int, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, Killed]:
    """All kill points on all servers: one Spark that is killed, one that drains."""
    for url in servers.values():  # it runs again where a process of Spark's came too late
        with redis.Redis.from_url(url) as client:
            client.flushall()
    folder: Path = tmp_path_factory.mktemp("killed")
    cases = killed_driver.run(folder, servers, seed, POINTS)
    for name, case in cases.items():
        say(pytestconfig, f"killed at {name}", f"into {case.query.sink}", seed)
    return cases


@pytest.fixture(params=["engine", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_lost_doubled_or_left_pending(round_: dict[str, Killed], point: str, kind: str, seed: int) -> None:
    """Nothing lost, nothing twice, order kept, nothing acknowledged before its commit, nothing pending."""
    case = round_[f"{point}, {kind}"]
    assert case.history.added
    assert case.history.kept()
    assert case.history.acknowledged
    assert not case.report, f"RSTREAM_SEED={seed}\n{case.report}"


def assert_was_pending(case: Killed) -> None:
    """All of the batch was pending at the kill, and nothing else but what was reserved ahead for the one after it."""
    batches = case.history.batches()
    following = batches.get(case.batch + 1, set()) if case.query.ahead == 1 else set()
    assert batches[case.batch] <= set(case.at_kill) <= batches[case.batch] | following


def test_what_was_in_the_offset_log_is_read_again_as_the_same_batch(round_: dict[str, Killed], kind: str) -> None:
    """Killed after the offset log, before reading: the batch of the second run is what was pending at the kill."""
    case = round_[f"logged, {kind}"]
    assert (case.logged, case.committed) == (case.batch, case.batch - 1)
    assert case.at_kill
    assert_was_pending(case)


def test_a_batch_that_the_sink_has_and_the_commit_log_has_not_is_written_again_in_its_place(
    round_: dict[str, Killed], kind: str
) -> None:
    """Killed between the sink and the commit log: nothing is acknowledged, the same rows replace what was there."""
    case = round_[f"written, {kind}"]
    assert (case.logged, case.committed) == (case.batch, case.batch - 1)
    replayed = case.history.batches()[case.batch]
    assert_was_pending(case)
    first = {row.place for row in case.history.rows if row.batch == case.batch and not row.kept}
    assert first == replayed  # the first run had written all of it


def test_a_batch_whose_commit_entry_is_lost_is_read_again_though_acknowledged(
    round_: dict[str, Killed], kind: str
) -> None:
    case = round_[f"commit entry lost, {kind}"]
    assert case.committed < case.batch
    assert case.history.batches()[case.batch]
    twice = [ack.place for ack in case.history.acknowledged if ack.place in case.history.batches()[case.batch]]
    assert len(twice) >= len(set(twice)) > 0


def test_a_committed_batch_is_settled_at_the_restart_and_not_read_again(round_: dict[str, Killed], kind: str) -> None:
    """Killed after the commit log, before XACK."""
    case = round_[f"committed, {kind}"]
    assert (case.logged, case.committed) == (case.batch, case.batch)
    batch = case.history.batches()[case.batch]
    assert_was_pending(case)
    assert {row.batch for row in case.history.rows if row.place in batch} == {case.batch}


def test_a_crash_in_batch_0_starts_where_the_group_was_made(round_: dict[str, Killed], kind: str) -> None:
    """With `latest`: what was there before is not read, what came while the query was down is."""
    case = round_[f"started, {kind}"]
    assert case.logged == -1
    assert case.before
    places = {row.place for row in case.history.kept()}
    assert not places & case.before
    assert places == {one.place for one in case.producer.added} - case.before


def test_an_available_now_run_leaves_nothing_pending(round_: dict[str, Killed], kind: str) -> None:
    """Its end is clean: the last batch, too, is acknowledged."""
    for name, case in round_.items():
        if name.endswith(kind):
            assert case.history.pending == []
            settled = {ack.place for ack in case.history.acknowledged}
            assert {row.place for row in case.history.kept()} <= settled
