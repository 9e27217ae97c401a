"""Starting an engine process and waiting until it answers."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from spark_streams.engine.settings.table import PASSWORD_VARIABLE

_SOCKET_PATH_LIMIT = 100  # sun_path holds 104 bytes on macOS, 108 on Linux
_READY = b"+PONG"
_LOADING = b"-LOADING"  # it reads its file back
_START_SECONDS = 15.0  # that an engine may take to say the first word, or the next while it reads its file back


class EngineStartError(RuntimeError):
    """The engine could not be started; the message is one line that says why."""


def unix_url(path: Path) -> str:
    """The URL under which redis-py finds this Unix socket."""
    return f"unix://{path}"


def fits(path: Path) -> bool:
    """Whether a Unix socket can have this path."""
    return len(os.fsencode(path)) < _SOCKET_PATH_LIMIT


def check_length(path: Path) -> Path:
    """The path, if a Unix socket can have it. Raises EngineStartError."""
    if not fits(path):
        raise EngineStartError(
            f"the socket path {path} is too long for a Unix socket (limit {_SOCKET_PATH_LIMIT} bytes)"
        )
    return path


def answers(path: Path, timeout: float = 1.0) -> bool:
    """Whether an engine behind this socket answers PING. One that reads its file back is waited for."""
    while (answer := ask(path, "PING", timeout=timeout)).startswith(_LOADING):
        time.sleep(0.05)
    return answer == _READY


def ask(path: Path, *words: str, timeout: float = 5.0) -> bytes:
    """The one-line answer of the engine behind a socket, without its line end; empty when there is none."""
    parts = [word.encode() for word in words]
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
    """Raise EngineStartError if this file is a symbolic link, or another user's. One that does not exist is neither."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise EngineStartError(f"{path} is a symbolic link, which the engine does not follow: remove it")
    if status.st_uid != os.getuid():
        raise EngineStartError(f"{path} belongs to another user: use a directory of your own, with your own files")


def open_own(path: Path) -> BinaryIO:
    """A file of this user, made if need be, to append to. Raises EngineStartError, OSError."""
    refuse_foreign(path)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


def start(arguments: Sequence[str], log: Path, detached: bool) -> subprocess.Popen[bytes]:
    """Start `python -m spark_streams.engine`; its output goes to `log`. Detached: own session, working directory /."""
    # The child finds this very package, whatever its working directory.
    root = str(Path(__file__).resolve().parents[3])
    environment = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with open_own(log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", "spark_streams.engine", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=detached,
            close_fds=True,
        )


def wait_until_ready(process: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    """Return once the engine answers and has read its file back. Raises EngineStartError with the end of its log."""
    deadline = time.monotonic() + _START_SECONDS
    pause = 0.005
    while (answer := ask(path, "PING", timeout=1.0)) != _READY:
        if answer.startswith(_LOADING):
            deadline = time.monotonic() + _START_SECONDS
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            reason = f"ended with code {ended}" if ended is not None else f"did not answer within {_START_SECONDS:g} s"
            raise EngineStartError(f"the stream engine {reason}: {tail(log)}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def tail(log: Path) -> str:
    """The last words of a log file, on one line."""
    try:
        text = log.read_bytes()[-2000:].decode("utf-8", "replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "its log is empty"
