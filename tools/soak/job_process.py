"""The two jobs of a soak and their producer."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from string import Template

import redis

from spark_streams.operations.verify.running_query import Driver
from tools.machine_time import machine_seconds

# -- configurations ----------------------------------------------------------------------------------------------------


STREAM, DEAD = "orders", "orders:dead"
ETL, ARCHIVE = "etl", "archive"

_SPARK = """
[spark]
master = "local[1]"
"spark.driver.memory" = "600m"
"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC -Xms600m -XX:+AlwaysPreTouch"
"spark.ui.enabled" = "false"
# Spark keeps the last 1,000 of each: at a trigger of 5 s, the heap would grow for 25 minutes.
"spark.sql.ui.retainedExecutions" = 100
"spark.ui.retainedJobs" = 100
"spark.ui.retainedStages" = 100
"spark.sql.streaming.minBatchesToRetain" = 20
"""
_ETL = Template("""\
url = "$url"

[source]
streams = "$stream"
group = "etl"
startingOffsets = "earliest"
maxDeliveries = 5
deadLetterStream = "$dead"
retryDelay = "20s,1m"

[columns]
number = "BIGINT"
amount = "DECIMAL(12,2)"
customer = "STRING"
note = "STRING"

[table]
format = "deltalake"
path = "$folder/table"
compact_every = 60
keep = "1h"

[dead_letters]
stream = "$dead"

[job]
checkpoint = "$folder/checkpoints/etl"
trigger = "5s"
""")

_ARCHIVE = Template("""\
url = "$url"

[source]
streams = "$stream"
group = "archive"

[table]
format = "parquet"
path = "$folder/archive"

[trim]
enabled = true
every = "30s"

[job]
checkpoint = "$folder/checkpoints/archive"
trigger = "60s"
""")


def write_configs(url: str, folder: Path) -> dict[str, Path]:
    """Write both configurations. Return the file of each job."""
    files = {}
    for name, text in ((ETL, _ETL), (ARCHIVE, _ARCHIVE)):
        files[name] = folder / f"{name}.toml"
        files[name].write_text(text.substitute(url=url, folder=folder, stream=STREAM, dead=DEAD) + _SPARK)
    return files


# -- a job of `rstream run` in a session of its own, which can be killed and started again -----------------------------


_END = 120.0  # machine seconds that a job may take to finish its batch


class JobProcess:
    """A running job. Its output is appended to `log`. starts: of its processes so far."""

    def __init__(self, name: str, config: Path, log: Path) -> None:
        """Start the job with this configuration."""
        self.name, self._config, self._log = name, config, log
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.starts += 1
        self.started = time.monotonic()
        environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        command = [
            sys.executable,
            "-m",
            "spark_streams.cli",
            "run",
            self.name,
            "--config",
            str(self._config),
        ]
        self._driver = Driver(command, self._config.parent, environment, self._log)

    def has_ended(self) -> bool:
        """Whether the job has ended by itself."""
        return self._driver.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and all its Python workers. Return when none is left."""
        self._driver.kill()

    def stop(self) -> int:
        """SIGTERM: the job finishes its batch. Return its exit code."""
        self._driver.process.send_signal(signal.SIGTERM)
        deadline = machine_seconds() + _END
        while not self.has_ended() and machine_seconds() < deadline:
            time.sleep(0.1)
        code = self._driver.process.poll()
        self.kill()
        return -signal.SIGKILL if code is None else code

    def processes(self) -> dict[int, str]:
        """Return its living processes: pid → `jvm`, `driver` or `worker`."""
        return {pid: self._kind(pid, command) for pid, command in self._driver.processes()}

    def _kind(self, pid: int, command: str) -> str:
        if Path(command.partition(" ")[0]).name == "java":
            return "jvm"
        return "driver" if pid == self._driver.process.pid else "worker"


# -- entries with consecutive numbers at a fixed rate, some of which do not fit their columns --------------------------


UNFIT = 200  # one entry in so many has an amount that is no number
_NOTE = "n" * 100


class Producer:
    """Adds entries in a thread until it is stopped. added: numbers 0 … added−1 are in the stream."""

    def __init__(self, url: str, rate: int, seed: int) -> None:
        """Start it. rate: entries per second."""
        self.added = self.unfit = 0
        self._url, self._rate, self._random = url, rate, random.Random(seed)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended it, if one did."""
        if self._error is not None:
            raise RuntimeError("the producer ended") from self._error

    def stop(self) -> None:
        """Stop it, after the entries that it is adding."""
        self._stopped.set()
        self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            with redis.Redis.from_url(self._url) as client:
                began = time.monotonic()
                while not self._stopped.wait(0.1):
                    self._add(client, round((time.monotonic() - began) * self._rate) - self.added)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    def _add(self, client: redis.Redis, count: int) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for number in range(self.added, self.added + count):
                is_unfit = self._random.randrange(UNFIT) == 0
                self.unfit += is_unfit
                amount = "unknown" if is_unfit else f"{self._random.randrange(100_000) / 100:.2f}"
                pipeline.xadd(
                    STREAM, {"number": number, "amount": amount, "customer": f"c{number % 997}", "note": _NOTE}
                )
            pipeline.execute()
        self.added += count
