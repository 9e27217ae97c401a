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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tests.operations.console.browser import Browser
from tools.waiting import stop

ROOT = Path(__file__).resolve().parents[3]
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"
_READY = re.compile(r"(http://(?:127\.0\.0\.1:\d+|localhost))(/\S*)")


@dataclass(frozen=True)
class Console:
    """A console that runs."""

    url: str  # without a slash at its end
    link: str  # the path that it has printed: with --write it has the one-time token
    process: subprocess.Popen[bytes]
    file: IO[bytes]
    cookies: dict[str, str] = field(default_factory=dict)  # of the browser that has opened the link

    def browser(self) -> Browser:
        """Return a browser that has opened the link."""
        return Browser(self.url, dict(self.cookies))

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


@contextlib.contextmanager
def running_console(
    server_url: str, *arguments: str, seconds: float = 60.0, before: str = "", opens_link: bool = True
) -> Iterator[Console]:
    """Start `rstream console` for a server on a free port, open its link, and stop it as Ctrl-C does. It must end with
    exit code 0. before: Python that runs first."""
    place = [] if "--socket" in arguments else ["--port", "0"]
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            [sys.executable, "-c", before + _RSTREAM, "console", *place, "--url", server_url, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
        console = Console("", "", process, file)
        try:
            deadline = time.monotonic() + seconds
            while (ready := _READY.search(console.output().rpartition(" at ")[2])) is None:
                assert process.poll() is None, console.output()
                assert time.monotonic() < deadline, f"no console after {seconds} s: {console.output()}"
                time.sleep(0.02)
            console = Console(ready[1], ready[2], process, file)
            if "token=" in console.link and opens_link and place:
                browser = Browser(console.url)
                assert browser.get(console.link).status == 200
                console.cookies.update(browser.cookies)
            yield console
        finally:
            stop(process, 20)
        assert process.returncode == 0, console.output()
