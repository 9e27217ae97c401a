"""A task that fails in its first attempt reads and writes the same rows in its second, on both servers."""

from __future__ import annotations

import random

import pytest

from tests.legs.faults.conftest import say
from tools.chaos import tasks
from tools.chaos.stage import Case, Stage
from tools.servers.server import skip_without_redis

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("fault", tasks.FAILURES)
def test_a_failed_task_is_tried_again_with_the_same_rows(stage: Stage, seed: int, fault: str) -> None:
    """It raises, or its Python process is killed at row k, while it reads or while it writes."""
    tasks.failed(stage, fault)
    assert stage.is_right(), f"RSTREAM_SEED={seed}\n{stage}"


@pytest.fixture(scope="module")
def on_executors(
    servers: dict[str, str], seed: int, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, Case]:
    """All faults that want executors on all servers, in one cluster."""
    with Stage(tmp_path_factory.mktemp("executors"), servers, random.Random(seed)) as stage:
        tasks.failed_on_executors(stage, tasks.EXECUTOR_FAILURES)
    for name, one in stage.cases.items():
        say(pytestconfig, name, f"into {one.query.sink}", seed)
    return stage.cases


@pytest.fixture(params=["engine", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


def test_a_killed_executor_costs_nothing(on_executors: dict[str, Case], kind: str, seed: int) -> None:
    """SIGKILL of an executor in the middle of a task; the task runs elsewhere."""
    failed = on_executors[f"executor killed, {kind}"]
    assert any(row.attempt > 0 for row in failed.history.kept())
    assert failed.is_right(), f"RSTREAM_SEED={seed}\n{failed}"


def test_a_speculative_twin_leaves_one_copy(on_executors: dict[str, Case], kind: str, seed: int) -> None:
    """Two attempts of one task run at the same time and both read all of it; one counts, whichever ends first."""
    failed = on_executors[f"speculative twin, {kind}"]
    streamed = failed.query.sink == "stream"  # then a row that counts is one more
    twins = [row for row in failed.history.rows if row.attempt == 1 and not (streamed and row.kept)]
    tasks = {(row.batch, row.partition) for row in twins}
    counted = [row for row in failed.history.kept() if (row.batch, row.partition) in tasks]
    assert sorted(row.value for row in twins) == sorted(row.value for row in counted) != []
    assert failed.is_right(), f"RSTREAM_SEED={seed}\n{failed}"
