"""A job of `rstream run` in a session of its own, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spark_streams.cli", "run", self.name, "--config", str(self._config)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether the job has ended by itself."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and all its Python workers. Return when none is left."""
        while remaining := self.processes():
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM: the job finishes its batch. Return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        deadline = machine_seconds() + _END
        while self._process.poll() is None and machine_seconds() < deadline:
            time.sleep(0.1)
        code = self._process.poll()
        self.kill()
        return -signal.SIGKILL if code is None else code

    def processes(self) -> dict[int, str]:
        """Return its living processes: pid → `jvm`, `driver` or `worker`."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._process.pid and state not in "ZX":
                    found[int(entry.name)] = self._kind(int(entry.name), (entry / "comm").read_text().strip())
        return found

    def _kind(self, pid: int, command: str) -> str:
        if command == "java":
            return "jvm"
        return "driver" if pid == self._process.pid else "worker"
