"""A private engine that lives as long as a `with` block."""

from __future__ import annotations

import atexit
import datetime
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from spark_streams.engine.launch.process import ask, check_length, start, unix_url, wait_until_ready
from spark_streams.model import times

_SOCKET = "engine.sock"
_NOT_RUNNING = "the engine is not running: use it in a with block, or call start()"


class LocalEngine:
    """`with LocalEngine() as engine: redis.Redis.from_url(engine.url)`.

    It runs in its own process with its own socket, and ends with the block or when this process dies. By default it is
    empty and keeps its data in memory. With a `directory` it loads and stores its data there (`fsync`: always, everysec
    or no). Raises EngineStartError.
    """

    def __init__(self, directory: Path | str | None = None, fsync: str = "everysec") -> None:
        self._keeps = Path(directory).absolute() if directory is not None else None
        self._fsync = fsync
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""  # set while the engine runs

    @property
    def pid(self) -> int:
        """The process id of the running engine."""
        if self._process is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._process.pid

    def start(self) -> LocalEngine:
        """Start the engine and return it, if a `with` block does not fit, as in a notebook. `stop()` ends it."""
        return self.__enter__()

    def __enter__(self) -> LocalEngine:
        base = tempfile.gettempdir()
        # A long TMPDIR (macOS, CI) would make the socket's path too long.
        self._directory = Path(tempfile.mkdtemp(prefix="rstream-", dir=base if len(base) < 60 else "/tmp"))
        path, log = self._directory / _SOCKET, self._directory / "engine.log"
        try:
            check_length(path)
            arguments = ["--port", "0", "--unixsocket", str(path), "--parent", str(os.getpid())]
            arguments += ["--enable-debug-command", "local"]
            if self._keeps is not None:
                self._keeps.mkdir(parents=True, exist_ok=True)
                arguments += ["--appendonly", "yes", "--appendfsync", self._fsync, "--dir", str(self._keeps)]
            self._process = start(arguments, log, detached=False)
            wait_until_ready(self._process, path, log)
        except BaseException:
            self.stop()
            raise
        self.url = unix_url(path)
        atexit.register(self.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def advance(self, duration: str | float | datetime.timedelta) -> None:
        """Move the engine's time on, so that nothing has to sleep: new IDs, idle times, expiry, delays of retries and
        leases follow, and clients whose wait is over are answered at once.

        duration: `10m`, seconds, or a timedelta. Raises ValueError.
        """
        if isinstance(duration, str):
            milliseconds = times.duration(duration)
        else:
            seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration
            milliseconds = round(seconds * 1000)
        self._set_clock("ADVANCE", str(milliseconds))

    def freeze(self, at: str | int | datetime.datetime | None = None) -> None:
        """Stop the engine's clock, so that tests know each ID. `advance` moves it, `unfreeze` lets it run again.

        at: a time as ISO-8601 (UTC if it names no zone), in milliseconds since 1970, or a datetime. Default: the
        present moment. Raises ValueError.
        """
        time = at.isoformat() if isinstance(at, datetime.datetime) else at
        self._set_clock("FREEZE", *([] if time is None else [str(times.moment(str(time)))]))

    def unfreeze(self) -> None:
        """Let a frozen clock run again, from its time."""
        self._set_clock("RUN")

    def reset_clock(self) -> None:
        """Return to the machine's time. The IDs of a stream never become smaller."""
        self._set_clock("RESET")

    def _set_clock(self, *words: str) -> None:
        if self._directory is None:
            raise RuntimeError(_NOT_RUNNING)
        answer = ask(self._directory / _SOCKET, "DEBUG", "CLOCK", *words)
        if answer != b"+OK":
            raise ValueError(answer.removeprefix(b"-ERR ").decode() or "the engine did not answer")

    def kill(self) -> None:
        """End the process as a power failure would: unwritten data is lost. A later `stop` is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End the process and remove its temporary directory. Harmless if the process has ended."""
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        self.url = ""
