"""The two jobs of a soak and their producer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.operations.verify.running_query import Driver, processes_of
from tools.machine_time import wait_for_end

# -- configurations ----------------------------------------------------------------------------------------------------


STREAM, DEAD = "orders", "orders:dead"
CLAIMED = "soak:claimed"  # hash: number → how often another consumer has claimed its entry
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
claimIdle = "1m"

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
    """A running job. Its output is appended to `log`."""

    def __init__(self, name: str, config: Path, log: Path) -> None:
        """Start the job with this configuration."""
        self.name, self._config, self._log = name, config, log
        self._command = [sys.executable, "-m", "spark_streams.cli", "run", name, "--config", str(config)]
        self.starts = 0  # of its processes so far
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.starts += 1
        self.started = time.monotonic()
        environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        self._driver = Driver(self._command, self._config.parent, environment, self._log)

    def refusal(self) -> str:
        """Start it once more while it runs. Return the last line that this start prints. Raises RuntimeError if the
        second start goes on for two machine minutes, or ends without an error."""
        log = self._log.with_name(f"{self.name}.second.log")
        log.unlink(missing_ok=True)
        with Driver(self._command, self._config.parent, dict(os.environ), log) as second:
            try:
                code = wait_for_end(second.process, _END)
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"the job {self.name} was started twice, and both run") from error
        if code == 0:
            raise RuntimeError(f"the job {self.name} was started twice, and the second run ended without an error")
        return log.read_text().strip().splitlines()[-1]

    def check(self) -> None:
        """Raise RuntimeError if the job has ended by itself."""
        if self._driver.process.poll() is not None:
            raise RuntimeError(f"the job {self.name} has ended: see {self._log}")

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and all its Python workers. Return when none is left."""
        self._driver.kill()

    def stop(self) -> None:
        """SIGTERM: the job finishes its batch. Raises RuntimeError if it ends with an error, or does not end."""
        process = self._driver.process
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait_for_end(process, _END)
        self.kill()
        if process.returncode:
            raise RuntimeError(f"the job {self.name} ended with {process.returncode}: see {self._log}")

    def processes(self) -> dict[int, str]:
        """Return its living processes: pid → `jvm`, `driver` or `worker`."""
        driver = self._driver.process.pid
        return {
            pid: "jvm" if Path(command.partition(" ")[0]).name == "java" else "driver" if pid == driver else "worker"
            for pid, command in processes_of(driver)
        }


# -- entries with consecutive numbers at a fixed rate, some of which do not fit their columns --------------------------


UNFIT = 200  # one entry in so many has an amount that is no number
_NOTE = "n" * 100
_ADDED = "soak:added"  # how many numbers are in the stream: written in the transaction that adds them


class Producer:
    """Adds entries in a thread until it is stopped. Numbers 0 … added−1 are in the stream."""

    def __init__(self, url: str, rate: int, seed: int) -> None:
        """Start it. rate: entries per second."""
        self.added, self._seed = 0, seed
        self._stopped = threading.Event()
        self._running = ThreadPoolExecutor(1).submit(self._run, url, rate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it without a look at errors: Python would otherwise wait for its thread forever."""
        self._stopped.set()

    @property
    def has_ended(self) -> bool:
        return self._running.done()

    def check(self) -> None:
        """Raise the error that ended it, if one did."""
        if self.has_ended:
            self._running.result()

    def stop(self) -> None:
        """Stop it, after the entries that it is adding. Raises the error that ended it, if one did."""
        self._stopped.set()
        self._running.result()

    def unfit(self) -> int:
        """Return how many of the numbers have an unfit entry."""
        return sum(map(self._is_unfit, range(self.added)))

    def _run(self, url: str, rate: int) -> None:
        began = time.monotonic()
        # Without retries and without a time limit: no transaction is sent twice, and none is left behind at the server.
        with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
            while not self._stopped.wait(0.1):
                with contextlib.suppress(redis.RedisError):  # the server is away, or refuses writes
                    self.added = int(cast("bytes | None", client.get(_ADDED)) or 0)
                    self._add(client, round((time.monotonic() - began) * rate))

    def _add(self, client: redis.Redis, due: int) -> None:
        with client.pipeline(transaction=True) as pipeline:
            for number in range(self.added, due):
                pipeline.xadd(STREAM, self._entry(number))
            pipeline.set(_ADDED, due)
            pipeline.execute()
        self.added = due

    def _entry(self, number: int) -> dict[Any, Any]:
        amount = "unknown" if self._is_unfit(number) else f"{number % 100_000 / 100:.2f}"
        return {"number": number, "amount": amount, "customer": f"c{number % 997}", "note": _NOTE}

    def _is_unfit(self, number: int) -> bool:
        return zlib.crc32(b"%d %d" % (self._seed, number)) % UNFIT == 0
