"""examples/from_kafka: the program for Kafka and the one that replaces it write the same rows."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tools.bench.peers.sides import Bench, Kafka
from tools.servers.jars import ROOT, fetched

pytestmark = pytest.mark.peers


@pytest.fixture
def bench() -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(stack)


def run(name: str, server: str, folder: Path, *jars: Path) -> None:
    """Run a program of examples/from_kafka as a user would."""
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--jars", ",".join(map(str, jars))]
    program = [str(ROOT / "examples/from_kafka" / name), server]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*submit, *program], check=True, cwd=folder, env=environment, timeout=240)


def fields_of(entry: Any) -> dict[bytes, bytes]:
    _, fields = entry
    return dict(zip(fields[::2], fields[1::2], strict=True))


def messages(bench: Bench, topic: str, count: int) -> list[dict[str, str]]:
    """Return the first messages of a topic."""
    kafka = importlib.import_module("confluent_kafka")
    consumer = kafka.Consumer({"bootstrap.servers": bench.kafka.url, "group.id": "read"})
    consumer.assign([kafka.TopicPartition(topic, 0, kafka.OFFSET_BEGINNING)])
    return [json.loads(message.value(), parse_float=Decimal) for message in consumer.consume(count, 30)]


def test_both_programs_write_the_same_rows(bench: Bench, tmp_path: Path) -> None:
    orders = [{"customer": f"c{n % 7}", "amount": f"{n}.50"} for n in range(25_000)]
    producer = bench.producer()
    for name in ("orders", "large"):
        bench.topic(name)
    with bench.redis.client() as client:
        for order in orders:
            producer.produce("orders", value=json.dumps(order))
            client.call("XADD", "orders", "*", *(word for field in order.items() for word in field))
        producer.flush()
        run("before.py", bench.kafka.url, tmp_path, *(jar for jar in fetched(Kafka.jars) if jar.suffix == ".jar"))
        run("after.py", bench.redis.url, tmp_path)
        entries = client.call("XRANGE", "large", "-", "+")
    written = [{name: row[name.encode()].decode() for name in orders[0]} for row in map(fields_of, entries)]
    sent = messages(bench, "large", len(orders) + 1)
    assert written == orders[100:]
    assert [(row["customer"], Decimal(row["amount"])) for row in sent] == [
        (row["customer"], Decimal(row["amount"])) for row in written
    ]
