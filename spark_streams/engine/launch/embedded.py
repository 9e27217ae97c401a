"""The engine behind an `embedded:` URL: started on first use, shared by all processes of a user on this machine.

    $XDG_RUNTIME_DIR or the temp directory
      rstream-<uid>/          mode 0700, ours
        engine.sock           where it listens; connecting to it is the test of life
        engine.lock           held while somebody looks, removes a dead socket, starts
        engine.log            what it had to say

Whoever finds nobody answering takes the lock, looks again, and starts one. The engine belongs to no starter: it has a
session of its own and ends some time after its last client has gone.

`embedded:///dir` is another engine for each directory, which keeps everything there:

    dir/
      appendonly.aof          what it holds; the engine that uses it has it locked (.appendonly.aof.lock)
      engine.sock             or, where that name is too long for a socket, rstream-<uid>/<hash of dir>.sock
      engine.address          then says where it is: not every process has the same XDG_RUNTIME_DIR
      engine.lock, engine.log as above

If it dies, the next one to ask starts it again from its file. Who only looks (`find`) starts nothing, and makes
neither folder nor file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from spark_streams.engine.launch.process import (
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

__all__ = ["IDLE_SECONDS", "EngineStartError", "find", "kept_bytes", "locate", "meeting_place"]

# What is written, or believed, in a folder.
_FILES = ("engine.sock", "engine.lock", "engine.log", "engine.address", "appendonly.aof", ".appendonly.aof.lock")
_LOG_LIMIT = 1 << 20
IDLE_SECONDS = 600.0  # how long an engine outlives its last client, if nobody says otherwise
BUSY_SECONDS = 5.0  # how long an engine may be busy and not answer, before another one is started


def locate(
    directory: Path | None = None,
    idle: float = IDLE_SECONDS,
    fsync: str | None = None,
    busy: float = BUSY_SECONDS,
    meeting: Path | None = None,
) -> str:
    """The URL of the user's shared engine, started if it does not run; it outlives its last client by `idle` seconds.

    With a directory: the engine that keeps everything there. `fsync` is its appendfsync, everysec if nobody says
    otherwise; one that runs already is changed. One that does not answer for `busy` seconds is taken for dead. meeting:
    the `meeting_place` of somebody else, whose engine is meant. Raises EngineStartError.
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
    """The URL of the engine that `locate` would find running; None where it would start one. `busy` and `meeting` as
    there.

    Raises EngineStartError where the folder cannot be trusted.
    """
    if not (meeting or meeting_place() if directory is None else directory).is_dir():
        return None
    path = _folder(meeting) / "engine.sock" if directory is None else _socket_of(_keeping_folder(directory))
    return unix_url(path) if path is not None and answers(path, busy) else None


def kept_bytes(directory: Path) -> int:
    """The size of the file that a directory's engine is started from; 0 where there is none."""
    file = directory / "appendonly.aof"
    return file.stat().st_size if file.exists() else 0


def _start_once(folder: Path, path: Path, settings: list[str], busy: float, keeping: bool) -> None:
    """Start it, unless another process is faster."""
    log = folder / "engine.log"
    with open_own(folder / "engine.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Asked again, with patience: an engine that is busy is not dead.
        if path.exists() and answers(path, timeout=busy):
            return
        if not keeping:
            path.unlink(missing_ok=True)  # one that keeps a file does so itself, once the file is its own
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.unlink()
        process = start(["--port", "0", "--unixsocket", str(path), *settings], log, detached=True)
        wait_until_ready(process, path, log)
        # It outlives us by design: Python must not warn about a child that still runs.
        process.returncode = 0


def _keeping_folder(directory: Path) -> Path:
    """The directory under its one name, made if need be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = directory.lstat()
        folder = directory.resolve(strict=True)
        mode = folder.stat().st_mode
    except OSError as problem:
        raise EngineStartError(f"cannot use {directory}: {problem.strerror or problem}") from None
    if stat.S_ISLNK(link.st_mode) and link.st_uid != os.getuid():
        raise EngineStartError(f"{directory} is a symbolic link of another user: name the directory itself")
    for path in (folder, *(folder / name for name in _FILES)):
        refuse_foreign(path)
    if mode & 0o022:
        raise EngineStartError(f"{folder} can be written to by other users: run chmod go-w {folder}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise EngineStartError(f"cannot use {folder}: it cannot be written to")
    return folder


def _socket_of(folder: Path) -> Path | None:
    """Where the engine of a directory listens; None where that is not agreed on yet."""
    path = folder / "engine.sock"
    if fits(path):
        return path
    try:
        return Path((folder / "engine.address").read_text())
    except FileNotFoundError:
        return None


def _agree_on_socket(folder: Path, meeting: Path | None) -> Path:
    """A socket elsewhere for the engine of a directory with a long name, told to all."""
    note = folder / "engine.address"
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    path = check_length(_folder(meeting) / f"{name}.sock")
    # Whole or not at all, and the first one counts.
    fresh = folder / f"engine.address.{os.getpid()}"
    fresh.write_text(str(path))
    with contextlib.suppress(FileExistsError):
        os.link(fresh, note)
    fresh.unlink()
    return Path(note.read_text())


def meeting_place() -> Path:
    """Where all processes of the user meet that have this one's environment."""
    chosen = os.environ.get("RSTREAM_EMBEDDED_DIR")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"rstream-{os.getuid()}"


def _folder(meeting: Path | None) -> Path:
    """The rendezvous folder, made if need be; only ours, only for us."""
    folder = meeting or meeting_place()
    try:
        folder.mkdir(mode=0o700, parents=bool(os.environ.get("RSTREAM_EMBEDDED_DIR")), exist_ok=True)
        status = folder.lstat()
    except OSError as problem:
        raise EngineStartError(f"cannot use {folder} for the shared engine: {problem.strerror or problem}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise EngineStartError(f"{folder} is not a directory of this user: refusing to share an engine through it")
    if status.st_mode & 0o077:
        raise EngineStartError(f"{folder} is open to other users: run chmod 700 {folder}")
    for name in _FILES:
        refuse_foreign(folder / name)
    return folder
