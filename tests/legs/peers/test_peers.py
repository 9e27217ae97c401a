"""Each side reads what was written, and goes on after a kill."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tools.bench.peers.rows import drain, kill, start, write
from tools.bench.peers.sides import Bench, Flink, Kafka, KafkaAvro, Ours, Side, SparkRedis

pytestmark = pytest.mark.peers
SHARE = 0.005


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack, SHARE)


@pytest.mark.parametrize("shape", ["three", "twenty", "json"])
@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_all_is_read(bench: Bench, side: type[Side], shape: str) -> None:
    """It counts the rows itself."""
    assert drain(side(bench), 4, shape, "parquet")["rate"] > 0


@pytest.mark.parametrize("side", [KafkaAvro, SparkRedis])
def test_three_fields_are_read(bench: Bench, side: type[Side]) -> None:
    assert drain(side(bench), 1, "three", "parquet")["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink])
def test_all_is_written(bench: Bench, side: type[Side]) -> None:
    assert write(side(bench))["rate"] > 0


@pytest.mark.parametrize("side", [Ours, Kafka, Flink, SparkRedis])
def test_the_first_row_comes(bench: Bench, side: type[Side]) -> None:
    assert start(side(bench))["first row"] > 0


@pytest.mark.parametrize("side", [Ours, Flink])
def test_kills_neither_lose_nor_double(bench: Bench, side: type[Side]) -> None:
    found = kill(side(bench))
    assert (found["rows lost"], found["rows twice"]) == (0, 0)
