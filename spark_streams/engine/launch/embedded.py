"""The engine of an `embedded:` URL: started on first use, shared by all processes of a user on this machine.

    $XDG_RUNTIME_DIR or the temp directory
      rstream-<uid>/          mode 0700, owned by the user
        engine.sock           the engine's socket; a process connects to it to test whether the engine runs
        engine.lock           held while a process checks, removes a dead socket and starts an engine
        engine.log            the engine's log

A process that gets no answer takes the lock, checks again, and starts an engine. The engine does not belong to the
process that started it: it has its own session, and it ends some time after its last client has disconnected.

`embedded:///dir` names a separate engine for each directory, which stores all data there:

    dir/
      appendonly.aof          the data; locked by the engine that uses it (.appendonly.aof.lock)
      engine.sock             if this path is too long for a socket: rstream-<uid>/<hash of dir>.sock
      engine.address          then holds that path, because not every process has the same XDG_RUNTIME_DIR
      engine.lock, engine.log as above

If this engine dies, the next process that needs it starts it again from its file. `find` starts no engine and creates
neither folder nor file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import stat
import tempfile
from pathlib import Path

from spark_streams.engine.launch.engine_process import (
    EngineStartError,
    answers,
    ask,
    check_length,
    fits,
    open_own,
    refuse_foreign,
    start,
    unix_url,
    wait_until_ready,
)

__all__ = ["IDLE_SECONDS", "EngineStartError", "find", "locate", "meeting_place", "stored_bytes"]

# Files of an engine; none of them may belong to another user.
_FILES = ("engine.sock", "engine.lock", "engine.log", "engine.address", "appendonly.aof", ".appendonly.aof.lock")
_LOG_LIMIT = 1 << 20
IDLE_SECONDS = 600.0  # default time that an engine lives after its last client
BUSY_SECONDS = 5.0  # time without an answer after which an engine is considered dead


def locate(
    directory: Path | None = None,
    idle: float = IDLE_SECONDS,
    fsync: str | None = None,
    busy: float = BUSY_SECONDS,
    meeting: Path | None = None,
) -> str:
    """Return the URL of the user's shared engine; start it if needed. It ends `idle` seconds after its last client.

    directory: use the engine that stores its data there. fsync: its appendfsync, everysec by default; a running
    engine is changed. busy: seconds without an answer after which an engine is considered dead. meeting: the
    `meeting_place` of another environment, if its engine is to be found. Raises EngineStartError.
    """
    if directory is None:
        folder = _folder(meeting)
        path = check_length(folder / "engine.sock")
        settings: list[str] = []
    else:
        folder = _keeping_folder(directory)
        path = _socket_of(folder) or _agree_on_socket(folder, meeting)
        settings = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", fsync or "everysec"]
    if not answers(path):
        _start_once(folder, path, ["--idle", str(idle), *settings], busy, keeping=directory is not None)
    if directory is not None and fsync is not None and ask(path, "CONFIG", "SET", "appendfsync", fsync) != b"+OK":
        raise EngineStartError(f"the stream engine of {folder} does not take appendfsync {fsync}")
    return unix_url(path)


def find(directory: Path | None = None, busy: float = BUSY_SECONDS, meeting: Path | None = None) -> str | None:
    """Return the URL of a running engine; None if `locate` would start one. `busy` and `meeting` as in `locate`.

    Raises EngineStartError if the folder cannot be trusted.
    """
    if not (meeting or meeting_place() if directory is None else directory).is_dir():
        return None
    path = _folder(meeting) / "engine.sock" if directory is None else _socket_of(_keeping_folder(directory))
    return unix_url(path) if path is not None and answers(path, busy) else None


def stored_bytes(directory: Path) -> int:
    """Return the size of the append-only file in a directory; 0 if there is none."""
    file = directory / "appendonly.aof"
    return file.stat().st_size if file.exists() else 0


def _start_once(folder: Path, path: Path, settings: list[str], busy: float, keeping: bool) -> None:
    """Start an engine, unless another process has started it first."""
    log = folder / "engine.log"
    with open_own(folder / "engine.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Checked again with a longer timeout: an engine that is busy is not dead.
        if path.exists() and answers(path, timeout=busy):
            return
        if not keeping:
            path.unlink(
                missing_ok=True
            )  # an engine with a file removes the socket itself, once it holds the file's lock
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.unlink()
        process = start(["--port", "0", "--unixsocket", str(path), *settings], log, detached=True)
        wait_until_ready(process, path, log)
        # The engine outlives this process by design: Python must not warn about a running child.
        process.returncode = 0


def _keeping_folder(directory: Path) -> Path:
    """Return the directory without symbolic links; create it if it is missing. Raises EngineStartError."""
    try:
        _make_private(directory)
        link = directory.lstat()
        folder = directory.resolve(strict=True)
        mode = folder.stat().st_mode
    except OSError as problem:
        raise EngineStartError(
            f"cannot use {directory}: {problem.strerror or problem}. Use a directory that this user can "
            "create and write to"
        ) from None
    if stat.S_ISLNK(link.st_mode) and link.st_uid != os.getuid():
        raise EngineStartError(
            f"cannot use {directory}: it is a symbolic link of another user, who could change its target. "
            f"Use the directory itself: {folder}"
        )
    for path in (folder, *(folder / name for name in _FILES)):
        refuse_foreign(path)
    if mode & 0o022:
        raise EngineStartError(
            f"cannot use {folder}: other users can write to it. Run chmod go-w {shlex.quote(str(folder))}"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise EngineStartError(
            f"cannot use {folder}: this user cannot read and write in it. Change its rights, or use another directory"
        )
    return folder


def _make_private(folder: Path) -> None:
    """Create a folder, and the missing folders above it, for this user alone."""
    for missing in reversed([above for above in (folder, *folder.parents) if not above.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)  # raises if it is no folder


def _socket_of(folder: Path) -> Path | None:
    """Return the socket of a directory's engine; None if it is not agreed on yet."""
    path = folder / "engine.sock"
    if fits(path):
        return path
    try:
        return Path((folder / "engine.address").read_text())
    except FileNotFoundError:
        return None


def _agree_on_socket(folder: Path, meeting: Path | None) -> Path:
    """Agree on a socket outside a directory with a long path, and record it in the directory."""
    note = folder / "engine.address"
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    path = check_length(_folder(meeting) / f"{name}.sock")
    # A link appears complete or not at all, and the first process wins.
    fresh = folder / f"engine.address.{os.getpid()}"
    fresh.write_text(str(path))
    with contextlib.suppress(FileExistsError):
        os.link(fresh, note)
    fresh.unlink()
    return Path(note.read_text())


def meeting_place() -> Path:
    """Return the folder in which all processes of the user with the same environment find the engine."""
    configured_folder = os.environ.get("RSTREAM_EMBEDDED_DIR")
    if configured_folder:
        return Path(configured_folder).absolute()
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"rstream-{os.getuid()}"


def _folder(meeting: Path | None) -> Path:
    """Return the meeting folder; create it if it is missing. It must belong to the user and be closed to others."""
    folder = meeting or meeting_place()
    try:
        _make_private(folder)
        status = folder.lstat()
    except OSError as problem:
        raise EngineStartError(f"cannot use {folder} for the shared engine: {problem.strerror or problem}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise EngineStartError(f"{folder} is not a directory of this user: refusing to share an engine through it")
    if status.st_mode & 0o077:
        raise EngineStartError(f"{folder} is open to other users: run chmod 700 {shlex.quote(str(folder))}")
    for name in _FILES:
        refuse_foreign(folder / name)
    return folder
