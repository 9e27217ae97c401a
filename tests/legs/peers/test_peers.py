"""Each side reads what was written, and goes on after a kill."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator

import pytest

from tools.bench.peers.client import Client
from tools.bench.peers.queries import nexmark, trigger
from tools.bench.peers.rows import drain, kill, write
from tools.bench.peers.sides import Bench, Flink, Kafka, KafkaAtOnce, KafkaAvro, Ours, OursNoAck, Side, SparkRedis
from tools.bench.peers.tables import arrive
from tools.bench.row import NoFigureError

pytestmark = pytest.mark.peers
SHARE = 0.005


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack, SHARE)


_OF_THREE_FIELDS = [(side, "three") for side in (OursNoAck, KafkaAtOnce, KafkaAvro, SparkRedis)]


@pytest.mark.parametrize(
    ("side", "shape"), [*itertools.product((Ours, Kafka, Flink), ("three", "twenty", "json")), *_OF_THREE_FIELDS]
)
def test_all_is_read(bench: Bench, side: type[Side], shape: str) -> None:
    """It counts the rows itself."""
    assert drain(side(bench), 1, shape, "parquet")["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_all_is_written(bench: Bench, side: type[Side]) -> None:
    assert write(side(bench))["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka])
def test_a_batch_over_many_streams(bench: Bench, side: type[Side]) -> None:
    assert trigger(side(bench), 20, 2)["seconds"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_all_queries_of_nexmark_end(bench: Bench, side: type[Side]) -> None:
    assert nexmark(side(bench))["q11: rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_rows_arrive_in_a_table(bench: Bench, side: type[Side]) -> None:
    found = arrive(side(bench), 1_000, 0)
    assert 0 < found["p50"] <= found["p99"]


@pytest.mark.parametrize("side", [Ours, Kafka, Flink, SparkRedis])
def test_rows_come_after_a_kill(bench: Bench, side: type[Side]) -> None:
    found = kill(side(bench))
    assert side not in (Ours, Flink) or (found["rows lost"], found["rows twice"]) == (0, 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; print('begun', flush=True); time.sleep(60)", "took more than 1 s"),
        ("raise ValueError('no such topic')", "has ended: ValueError: no such topic"),
    ],
)
def test_a_program_that_gives_no_answer_is_ended_with_a_reason(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.bench.peers.client.LONGEST", 1.0)
    with Client([sys.executable, "-c", program], {}) as client, pytest.raises(NoFigureError) as error:
        client.ask("a request")
    assert str(error.value).splitlines()[0] == f"the program {reason}"
