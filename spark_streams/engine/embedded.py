"""The engine behind an `embedded:` URL: started on first use, shared by all processes of a user on this machine.

    $XDG_RUNTIME_DIR or the temp directory
      rstream-<uid>/          mode 0700, ours
        engine.sock           where it listens; connecting to it is the test of life
        engine.lock           held while somebody looks, removes a dead socket, starts
        engine.log            what it had to say

Whoever finds nobody answering takes the lock, looks again, and starts one. The engine belongs to no starter: it has a
session of its own and ends some time after its last client has gone.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

from spark_streams.engine.process import (
    EngineStartError,
    answers,
    check_length,
    start,
    unix_url,
    wait_until_ready,
)

__all__ = ["EngineStartError", "locate"]

_LOG_LIMIT = 1 << 20


def locate(directory: Path | None = None, idle: float = 600.0) -> str:
    """The URL of the user's shared engine, started if it does not run; it outlives its last client by `idle` seconds.

    `directory` is where an engine with an append-only file would keep it; there are none yet. Raises EngineStartError.
    """
    if directory is not None:
        raise EngineStartError("engines with a directory (append-only file) are not available yet")
    folder = _folder()
    path = check_length(folder / "engine.sock")
    if answers(path):
        return unix_url(path)
    log = folder / "engine.log"
    with (folder / "engine.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Asked again, with patience: an engine that is busy is not dead.
        if path.exists() and answers(path, timeout=5.0):
            return unix_url(path)
        path.unlink(missing_ok=True)
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.unlink()
        process = start(["--port", "0", "--unixsocket", str(path), "--idle", str(idle)], log, detached=True)
        wait_until_ready(process, path, log)
        # It outlives us by design: Python must not warn about a child that still runs.
        process.returncode = 0
    return unix_url(path)


def _folder() -> Path:
    """The rendezvous folder, made if need be; only ours, only for us."""
    chosen = os.environ.get("RSTREAM_EMBEDDED_DIR")
    if chosen:
        folder = Path(chosen).absolute()
    else:
        folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"rstream-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=bool(chosen), exist_ok=True)
        found = folder.lstat()
    except OSError as problem:
        raise EngineStartError(f"cannot use {folder} for the shared engine: {problem.strerror or problem}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EngineStartError(f"{folder} is not a directory of this user: refusing to share an engine through it")
    if found.st_mode & 0o077:
        raise EngineStartError(f"{folder} is open to other users: run chmod 700 {folder}")
    return folder
