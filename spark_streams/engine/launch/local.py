"""A private engine that lives as long as a `with` block, and what a test commands it to do.

A test moves its clock, lets it fail (everything is a DEBUG command), and drops its last commands, as a power failure
may.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import re
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from spark_streams.base import given_text
from spark_streams.engine.launch.engine_process import ask, check_length, start, unix_url, wait_until_ready

_COUNT = re.compile(rb"\*(\d+)\r\n")
_LENGTH = re.compile(rb"\$(\d+)\r\n")


def drop_last_commands(file: Path, count: int) -> None:
    """Cut the file before its last `count` commands. A transaction counts as one command, SELECT as none. The file is
    complete: the engine has written it to its end."""
    data = file.read_bytes()
    ends, offset, is_open = [0], 0, False
    while offset < len(data):
        name, offset = _command(data, offset)
        is_open = name == b"multi" or (is_open and name != b"exec")
        if not is_open and name != b"select":
            ends.append(offset)
    with file.open("r+b") as opened:
        opened.truncate(ends[max(len(ends) - 1 - count, 0)] if count else len(data))


def _command(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the name of the command at this offset, and the offset behind it."""
    head = _COUNT.match(data, offset)
    assert head is not None, f"no command at offset {offset}"
    name, offset = b"", head.end()
    for index in range(int(head[1])):
        length = _LENGTH.match(data, offset)
        assert length is not None, f"no argument at offset {offset}"
        start, offset = length.end(), length.end() + int(length[1]) + 2
        name = data[start : offset - 2].lower() if index == 0 else name
    return name, offset


Error = Literal["OOM", "LOADING", "READONLY", "NOREPLICAS", "BUSY"]


def _milliseconds(duration: str | float | datetime.timedelta) -> str:
    """Return a duration (`10m`, seconds or a timedelta) as an argument. Raises ValueError."""
    if isinstance(duration, str):
        try:
            return str(given_text.duration(duration))
        except ValueError as error:
            raise ValueError(f"duration {duration!r} {error}") from None
    seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration
    return str(round(seconds * 1000))


class TestControls(ABC):
    """Clock and faults of an engine. A fault ends with its `with` block, and all faults with it."""

    __test__ = False  # pytest collects no tests here

    @abstractmethod
    def debug(self, *words: str) -> None:
        """Run a DEBUG command. Raises ValueError with the engine's error."""

    def advance(self, duration: str | float | datetime.timedelta) -> None:
        """Move the engine's time on, so that nothing has to sleep: new IDs, idle times, expiry, delays of retries and
        leases follow, and clients whose wait is over are answered at once.

        duration: `10m`, seconds, or a timedelta. Raises ValueError.
        """
        self.debug("CLOCK", "ADVANCE", _milliseconds(duration))

    def freeze(self, at: str | int | datetime.datetime | None = None) -> None:
        """Stop the engine's clock, so that tests know each ID. `advance` moves it, `unfreeze` lets it run again.

        at: a time as ISO-8601 (UTC if it names no zone), in milliseconds since 1970, or a datetime. Default: the
        present moment. Raises ValueError.
        """
        time = at.isoformat() if isinstance(at, datetime.datetime) else at
        self.debug("CLOCK", "FREEZE", *([] if time is None else [str(given_text.moment(str(time)))]))

    def unfreeze(self) -> None:
        """Let a frozen clock run again, from its time."""
        self.debug("CLOCK", "RUN")

    def reset_clock(self) -> None:
        """Return to the machine's time. The IDs of a stream never become smaller."""
        self.debug("CLOCK", "RESET")

    def refuses(self, error: Error) -> contextlib.AbstractContextManager[None]:
        """Refuse commands as a server does in this state, with Redis' text.

        OOM refuses commands that need memory; READONLY and NOREPLICAS refuse writes; LOADING and BUSY nearly all. EXEC
        is refused if it would run such a command. BUSY also ends with SCRIPT KILL.
        """
        if error not in get_args(Error):
            raise ValueError(f"an engine does not refuse commands with {error!r}: use {', '.join(get_args(Error))}")
        return self._fault("REFUSE", error)

    def closes(
        self, after_commands: int | None = None, after_bytes: int | None = None, before_effect: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Close a connection once: of the client that sends the command with this number, or that gets the byte with
        this number of a reply. Commands and bytes of all clients count, but no set-up of a connection (HELLO, AUTH,
        SELECT, CLIENT SETINFO, CLIENT SETNAME).

        before_effect: close before the command is run. Otherwise it is run, and its reply is lost.
        """
        if (after_commands is None) == (after_bytes is None):
            raise ValueError(
                f"give after_commands or after_bytes, not {'both' if after_bytes is not None else 'neither'} of them"
            )
        if after_bytes is not None:
            return self._fault("CUT", str(after_bytes))
        return self._fault("CLOSE", str(after_commands), "BEFORE" if before_effect else "AFTER")

    def delays(self, duration: str | float | datetime.timedelta) -> contextlib.AbstractContextManager[None]:
        """Let each command take this time. Meanwhile the engine serves nobody else."""
        return self._fault("DELAY", _milliseconds(duration))

    def end_faults(self) -> None:
        """End all faults."""
        self.debug("FAULT", "END")

    @contextlib.contextmanager
    def _fault(self, *words: str) -> Iterator[None]:
        self.debug("FAULT", *words)
        try:
            yield
        finally:
            self.end_faults()


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
        from spark_streams.engine.persistence.stream_payload import (
            payload_of,  # only a test that loads a file needs the store
        )

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
