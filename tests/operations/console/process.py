"""A console that runs: `rstream console` in a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from spark_streams.operations.console.login.users import add_user
from tools.stopping import stop

ROOT = Path(__file__).resolve().parents[3]
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"
_READY = re.compile(r"https?://127\.0\.0\.1:\d+")


@dataclass(frozen=True)
class Console:
    """url: without a slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    file: IO[bytes]

    @property
    def host(self) -> str:
        """Its name and port, as in the header Host."""
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self.host.rpartition(":")[2])

    def connect(self, data: bytes = b"") -> socket.socket:
        """Return a new connection on which these bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(data)
        return connection

    def peak(self) -> int:
        """Megabytes of its memory at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def children(self) -> int:
        """Processes that it has started and that run."""
        return len(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())

    def output(self) -> str:
        """Return what it has printed so far; also the audit lines, unless `--audit` names a file."""
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode()


def write_users(path: Path, **passwords: str) -> Path:
    """Write the file of users as `--add-user` does."""
    for name, password in passwords.items():
        add_user(path, name, password)
    return path


@contextlib.contextmanager
def running_console(server_url: str, *arguments: str, seconds: float = 60.0, before: str = "") -> Iterator[Console]:
    """Start `rstream console` for a server on a free port, and stop it as Ctrl-C does. It must end with exit code 0.
    before: Python that runs first."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            [sys.executable, "-c", before + _RSTREAM, "console", "--port", "0", "--url", server_url, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
        console = Console("", process, file)
        try:
            deadline = time.monotonic() + seconds
            while (ready := _READY.search(console.output().rpartition(" at ")[2])) is None:
                assert process.poll() is None, console.output()
                assert time.monotonic() < deadline, f"no console after {seconds} s: {console.output()}"
                time.sleep(0.02)
            yield Console(ready[0], process, file)
        finally:
            stop(process, 20)
        assert process.returncode == 0, console.output()
