"""A private engine that lives as long as a `with` block."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from spark_streams.engine.launch.fault_controls import TestControls
from spark_streams.engine.launch.lost_commands import drop_last_commands
from spark_streams.engine.launch.process import ask, check_length, start, unix_url, wait_until_ready

_SOCKET, _FILE = "engine.sock", "appendonly.aof"
_RESTORE_SECONDS = 60.0
_NOT_RUNNING = "the engine is not running: use it in a with block, or call start()"


class LocalEngine(TestControls):
    """`with LocalEngine() as engine: redis.Redis.from_url(engine.url)`.

    It runs in its own process with its own socket, and ends with the block or when this process dies. By default it is
    empty and keeps its data in memory. With a `directory` it loads and stores its data there (`fsync`: always, everysec
    or no). Raises EngineStartError.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)  # of the wait for its start

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
        try:
            self._start(self._directory)
        except BaseException:
            self.stop()
            raise
        self.url = unix_url(self._directory / _SOCKET)
        atexit.register(self.stop)
        return self

    def _start(self, directory: Path) -> None:
        """Start the process. Its socket and its log are in the directory. Raises EngineStartError."""
        path, log = directory / _SOCKET, directory / "engine.log"
        check_length(path)
        arguments = ["--port", "0", "--unixsocket", str(path), "--parent", str(os.getpid())]
        arguments += ["--enable-debug-command", "local"]
        if self._keeps is not None:
            self._keeps.mkdir(parents=True, exist_ok=True)
            arguments += ["--appendonly", "yes", "--appendfsync", self._fsync, "--dir", str(self._keeps)]
        self._process = start(arguments, log, detached=False)
        wait_until_ready(self._process, path, log, self.clock)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def debug(self, *words: str) -> None:
        """Run a DEBUG command. Raises ValueError with the engine's error."""
        if self._directory is None:
            raise RuntimeError(_NOT_RUNNING)
        answer = ask(self._directory / _SOCKET, "DEBUG", *words)
        if answer != b"+OK":
            raise ValueError(answer.removeprefix(b"-ERR ").decode() or "the engine did not answer")

    def load(self, file: Path | str, stream: str | None = None) -> None:
        """Restore a stream with its groups from a file of `rstream export --with-groups`.

        The engine's clock is set to the time of the export and runs on, so that idle times are as they were then. With
        several files, it is that of the last one.

        stream: the name of the stream, if not that of the file. Raises ValueError if the file cannot be read, or if the
        key exists; OSError.
        """
        from spark_streams.base.export_lines import read_export
        from spark_streams.engine.launch.exported import payload_of  # only a test that loads a file needs the store

        if self._directory is None:
            raise RuntimeError(_NOT_RUNNING)
        try:
            with open(file, "rb") as lines:
                exported = read_export(lines)
        except ValueError as error:
            raise ValueError(f"file {str(file)!r} cannot be loaded: {error}") from None
        key = exported.name if stream is None else stream.encode()
        answer = ask(self._directory / _SOCKET, "RESTORE", key, "0", payload_of(exported), timeout=_RESTORE_SECONDS)
        if answer != b"+OK":
            reason = answer.removeprefix(b"-").decode() or "the engine did not answer"
            raise ValueError(f"file {str(file)!r} cannot be loaded as stream {key!r}: {reason}")
        self.freeze(exported.time)
        self.unfreeze()

    def restart(self, losing: int = 0) -> None:
        """Kill the engine and start it again at the same address, as after a power failure.

        losing: number of the last commands that changed data which are lost; a transaction counts as one. The engine
        needs a `directory`, from which it reads its data. It begins with the machine's clock and without
        faults. Raises RuntimeError, EngineStartError.
        """
        if self._directory is None:
            raise RuntimeError(_NOT_RUNNING)
        if self._keeps is None:
            raise RuntimeError("an engine in memory has nothing to start from: use LocalEngine(directory=…)")
        ask(self._directory / _SOCKET, "SAVE")
        self.kill()
        drop_last_commands(self._keeps / _FILE, losing)
        self._start(self._directory)

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
