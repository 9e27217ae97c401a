"""A Kafka broker in KRaft mode on a free port, in a process of its own. `python -m tools.servers.kafka` runs one until
Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.servers.jars import java
from tools.servers.server import Served, free_port, started

_HEAP = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")  # as its own script starts it
_CLUSTER = "c3BhcmstcmVkaXMtc3RyZQ"
_SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/log
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.max.timeout.ms=900000
log.index.size.max.bytes=1048576
"""


class Broker(NamedTuple):
    """url: HOST:PORT; log: the folder of its log."""

    url: str
    pid: int
    log: Path


@contextlib.contextmanager
def running_kafka() -> Iterator[Broker]:
    """Start a broker without topics in an empty folder, and stop it at the end."""
    port, controller = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="rstream-kafka-") as name:
        settings = Path(name) / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=name))
        formatted = [*java("kafka"), "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        subprocess.run(formatted, check=True, capture_output=True)
        command = [*java("kafka", *_HEAP), "kafka.Kafka", str(settings)]
        with started("kafka", f"127.0.0.1:{port}", command, _answers, interval=0.1) as served:
            yield Broker(served.url, served.process.pid, Path(name) / "log")


def _answers(served: Served) -> bool:
    admin = importlib.import_module("confluent_kafka.admin")  # an environment without it is type-checked, too
    with contextlib.suppress(admin.KafkaException):
        client = admin.AdminClient({"bootstrap.servers": served.url, "log_level": 0})
        return bool(client.list_topics(timeout=2).brokers)
    return False


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), running_kafka() as broker:
        print(f"bootstrap.servers={broker.url}, in {broker.log}", flush=True)
        time.sleep(1e9)
