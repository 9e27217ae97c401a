"""Starts an engine process and waits until it answers."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from spark_streams.base.extras import python_command, python_environment
from spark_streams.engine.settings import PASSWORD_VARIABLE

_SOCKET_PATH_LIMIT = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
_READY = b"+PONG"
_LOADING = b"-LOADING"  # the engine is loading its file
_START_SECONDS = 60.0  # time for an engine to answer, and between two answers while it loads its file
_QUIET_SECONDS = 5.0  # after them the log says that it waits

_log = logging.getLogger(__name__)


class EngineStartError(RuntimeError):
    """The engine could not be started. The message is one line with the reason."""


def unix_url(path: Path) -> str:
    """Return the redis-py URL of a Unix socket."""
    return f"unix://{path}"


def fits(path: Path) -> bool:
    """Whether a path is short enough for a Unix socket."""
    return len(os.fsencode(path)) < _SOCKET_PATH_LIMIT


def check_length(path: Path) -> Path:
    """Return the path if it is short enough for a Unix socket. Raises EngineStartError."""
    if not fits(path):
        raise EngineStartError(
            f"the socket path {path} is too long for a Unix socket (limit {_SOCKET_PATH_LIMIT} bytes). Set "
            "RSTREAM_EMBEDDED_DIR to a shorter path, for all programs that share the engine"
        )
    return path


def answers(path: Path, timeout: float = 1.0) -> bool:
    """Whether an engine behind this socket answers PING. Waits for an engine that is loading its file."""
    while (answer := ask(path, "PING", timeout=timeout)).startswith(_LOADING):
        time.sleep(0.05)
    return answer == _READY


def ask(path: Path, *words: str | bytes, timeout: float = 5.0) -> bytes:
    """Send a command; return its one-line answer without the line end, empty if there is none."""
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.readline().rstrip(b"\r\n")
    except OSError:
        return b""


def refuse_foreign(path: Path) -> None:
    """Raise EngineStartError if a file is a symbolic link or belongs to another user. A missing file is accepted."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise EngineStartError(f"{path} is a symbolic link, which the engine does not follow: remove it")
    if status.st_uid != os.getuid():
        raise EngineStartError(f"{path} belongs to another user: use a directory and files of your own")


def open_own(path: Path) -> BinaryIO:
    """Open a file of this user for appending; create it if it is missing. Raises EngineStartError, OSError."""
    refuse_foreign(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


def start(arguments: Sequence[str], log: Path, detached: bool) -> subprocess.Popen[bytes]:
    """Start `python -m spark_streams.engine`; its output goes to `log`. Detached: own session, working directory /."""
    environment = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    with open_own(log) as output:
        return subprocess.Popen(
            python_command("-m", "spark_streams.engine", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=python_environment(environment),
            start_new_session=detached,
            close_fds=True,
        )


def wait_until_ready(
    process: subprocess.Popen[bytes], path: Path, log: Path, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wait until the engine answers and has loaded its file, for up to a minute of this clock.

    Raises EngineStartError with the end of its log.
    """
    deadline = clock() + _START_SECONDS
    pause = 0.005
    is_told = False
    while (answer := ask(path, "PING", timeout=1.0)) != _READY:
        if answer.startswith(_LOADING):
            deadline = clock() + _START_SECONDS
        ended = process.poll()
        left = deadline - clock()
        if not is_told and left < _START_SECONDS - _QUIET_SECONDS:
            is_told = True
            _log.warning(
                "the stream engine has not answered for %g s: the machine is busy; waiting for up to %g s",
                _QUIET_SECONDS,
                _START_SECONDS,
            )
        if ended is not None or left < 0:
            reason = f"ended with code {ended}" if ended is not None else f"did not answer within {_START_SECONDS:g} s"
            raise EngineStartError(f"the stream engine {reason}: {tail(log)}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def tail(log: Path) -> str:
    """Return the last lines of a log file, on one line."""
    try:
        text = log.read_bytes()[-2000:].decode("utf-8", "replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "its log is empty"
