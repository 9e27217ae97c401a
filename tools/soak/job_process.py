"""A job of `rstream run` in a session of its own, which can be killed and started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from spark_streams.operations.verify.running_query import Driver
from tools.machine_time import machine_seconds

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
