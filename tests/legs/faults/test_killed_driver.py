"""SIGKILL of the driver at every point of a micro-batch, on both servers; a second run drains and all is there once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import redis

from spark_streams.operations.verify.history import Place
from tests.legs.faults.conftest import say
from tools.chaos import drivers
from tools.chaos.drivers import AtKill
from tools.chaos.stage import Case, Stage
from tools.servers.server import skip_without_redis

pytestmark = pytest.mark.spark

# scripts/chaos kills at all of drivers.KILLS.
POINTS = ["started", "logged", "written", "commit entry lost", "committed"]


@dataclass
class Killed:
    """A case, and what was there at the kill."""

    case: Case
    at_kill: AtKill


@pytest.fixture(scope="module")
def round_(
    servers: dict[str, str], seed: int, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, Killed]:
    """All kill points on all servers: one Spark that is killed, one that drains."""
    for url in servers.values():  # it runs again where a process of Spark's came too late
        with redis.Redis.from_url(url) as client:
            client.flushall()
    with Stage(tmp_path_factory.mktemp("killed"), servers, random.Random(seed)) as stage:
        at_kill = drivers.killed(stage, POINTS)
    for name, case in stage.cases.items():
        say(pytestconfig, f"killed at {name}", f"into {case.query.sink}", seed)
    return {name: Killed(case, at_kill[name]) for name, case in stage.cases.items()}


@pytest.fixture(params=["engine", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_lost_doubled_or_left_pending(round_: dict[str, Killed], point: str, kind: str, seed: int) -> None:
    """Nothing lost, nothing twice, order kept, nothing acknowledged before its commit, nothing pending."""
    case = round_[f"{point}, {kind}"].case
    assert case.history.added
    assert case.history.kept()
    assert case.history.acknowledged
    assert case.is_right(), f"RSTREAM_SEED={seed}\n{case}"


def batches_of(case: Case) -> dict[int, set[Place]]:
    """Return the entries that each batch has in the sink."""
    places: dict[int, set[Place]] = {}
    for row in case.history.kept():
        places.setdefault(row.batch, set()).add(row.place)
    return places


def assert_was_pending(killed: Killed) -> None:
    """All of the batch was pending at the kill, and nothing else but what was reserved ahead for the one after it."""
    batches, batch = batches_of(killed.case), killed.at_kill.batch
    following = batches.get(batch + 1, set()) if killed.case.query.ahead == 1 else set()
    assert batches[batch] <= set(killed.at_kill.pending) <= batches[batch] | following


def test_what_was_in_the_offset_log_is_read_again_as_the_same_batch(round_: dict[str, Killed], kind: str) -> None:
    """Killed after the offset log, before reading: the batch of the second run is what was pending at the kill."""
    killed = round_[f"logged, {kind}"]
    at_kill = killed.at_kill
    assert (at_kill.logged, at_kill.committed) == (at_kill.batch, at_kill.batch - 1)
    assert at_kill.pending
    assert_was_pending(killed)


def test_a_batch_that_the_sink_has_and_the_commit_log_has_not_is_written_again_in_its_place(
    round_: dict[str, Killed], kind: str
) -> None:
    """Killed between the sink and the commit log: nothing is acknowledged, the same rows replace what was there."""
    killed = round_[f"written, {kind}"]
    case, at_kill = killed.case, killed.at_kill
    assert (at_kill.logged, at_kill.committed) == (at_kill.batch, at_kill.batch - 1)
    replayed = batches_of(case)[at_kill.batch]
    assert_was_pending(killed)
    first = {row.place for row in case.history.rows if row.batch == at_kill.batch and not row.kept}
    assert first == replayed  # the first run had written all of it


def test_a_batch_whose_commit_entry_is_lost_is_read_again_though_acknowledged(
    round_: dict[str, Killed], kind: str
) -> None:
    killed = round_[f"commit entry lost, {kind}"]
    case, at_kill = killed.case, killed.at_kill
    assert at_kill.committed < at_kill.batch
    assert batches_of(case)[at_kill.batch]
    twice = [ack.place for ack in case.history.acknowledged if ack.place in batches_of(case)[at_kill.batch]]
    assert len(twice) >= len(set(twice)) > 0


def test_a_committed_batch_is_settled_at_the_restart_and_not_read_again(round_: dict[str, Killed], kind: str) -> None:
    """Killed after the commit log, before XACK."""
    killed = round_[f"committed, {kind}"]
    case, at_kill = killed.case, killed.at_kill
    assert (at_kill.logged, at_kill.committed) == (at_kill.batch, at_kill.batch)
    batch = batches_of(case)[at_kill.batch]
    assert_was_pending(killed)
    assert {row.batch for row in case.history.rows if row.place in batch} == {at_kill.batch}


def test_a_crash_in_batch_0_starts_where_the_group_was_made(round_: dict[str, Killed], kind: str) -> None:
    """With `latest`: what was there before is not read, what came while the query was down is."""
    killed = round_[f"started, {kind}"]
    case, at_kill = killed.case, killed.at_kill
    assert at_kill.logged == -1
    assert at_kill.before
    places = {row.place for row in case.history.kept()}
    assert not places & at_kill.before
    assert places == {one.place for one in case.producer.added} - at_kill.before


def test_an_available_now_run_leaves_nothing_pending(round_: dict[str, Killed], kind: str) -> None:
    """Its end is clean: the last batch, too, is acknowledged."""
    for name, killed in round_.items():
        if name.endswith(kind):
            case = killed.case
            assert case.history.pending == []
            settled = {ack.place for ack in case.history.acknowledged}
            assert {row.place for row in case.history.kept()} <= settled
