"""Each side reads what was written, and goes on after a kill."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from tools.bench.peers.rows import drain, kill, write
from tools.bench.peers.sides import Bench, Flink, Kafka, KafkaAvro, Ours, Side, SparkRedis

pytestmark = pytest.mark.peers
SHARE = 0.005


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack, SHARE)


_OF_THREE_FIELDS = [(side, "three") for side in (KafkaAvro, SparkRedis)]


@pytest.mark.parametrize(
    ("side", "shape"), [*itertools.product((Ours, Kafka, Flink), ("three", "twenty", "json")), *_OF_THREE_FIELDS]
)
def test_all_is_read(bench: Bench, side: type[Side], shape: str) -> None:
    """It counts the rows itself."""
    assert drain(side(bench), 1, shape, "parquet")["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_all_is_written(bench: Bench, side: type[Side]) -> None:
    assert write(side(bench))["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink, SparkRedis])
def test_rows_come_after_a_kill(bench: Bench, side: type[Side]) -> None:
    found = kill(side(bench))
    assert side not in (Ours, Flink) or (found["rows lost"], found["rows twice"]) == (0, 0)
