"""A console that runs: `rstream console` in a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.stopping import stop

ROOT = Path(__file__).resolve().parents[2]
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"
_READY = re.compile(r"https?://127\.0\.0\.1:\d+")


@dataclass(frozen=True)
class Console:
    """url: without a slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    file: IO[bytes]

    def output(self) -> str:
        """Return what it has printed so far; also the audit lines, unless `--audit` names a file."""
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode()


@contextlib.contextmanager
def running_console(server_url: str, *arguments: str, seconds: float = 60.0) -> Iterator[Console]:
    """Start `rstream console` for a server on a free port, and stop it as Ctrl-C does. It must end with exit code 0."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _RSTREAM, "console", "--port", "0", "--url", server_url, *arguments],
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
