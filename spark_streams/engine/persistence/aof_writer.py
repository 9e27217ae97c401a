"""Writes the journal to the append-only file, and flushes the file to disk.

    commands ──► journal ──► commit, once per turn of the event loop ──► file ──► fsync
                              replies are sent after it

    appendfsync always      commit returns after the disk has the data
                everysec    commit writes; a thread flushes every second, and the event loop never waits for it: while
                            the disk is busy, recorded commands wait in memory for up to two seconds
                no          commit writes; the operating system flushes

If the disk fails: with `always` the engine stops, because it has confirmed nothing that is not on disk. Otherwise
commands that change data get MISCONF until writing succeeds again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spark_streams.engine.journal import Journal
from spark_streams.engine.settings import Config
from spark_streams.engine.store.keyspace import Database


class PersistedEngine(Protocol):
    """What persistence needs of core.Engine. The core imports persistence, not the reverse."""

    config: Config
    databases: list[Database]
    journal: Journal | None  # persistence sets it while changes are recorded
    loading: bool  # while the file is loaded
    now: int  # Unix milliseconds
    stopping: bool  # the engine is stopping
    wake: Callable[[], None]  # ends the server's waiting; safe in any thread
    serve_meanwhile: Callable[[], None]  # serves clients while the file is loaded

    def set_loading(self, loading: bool) -> None:
        """Set whether the file is being loaded."""


# One append-only file on disk: append, flush, replace. No engine, no policy.
#
# An incomplete write is cut off, so that the file always ends with a whole command.


_COPY = 1 << 20


class AppendFile:
    """The file at `path`, created if it is missing. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.fd).st_size

    def append(self, data: bytes) -> None:
        """Write all of the data or nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Flush the file to disk."""
        # Not fdatasync: it is missing on macOS.
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


def copy_tail(source: Path, start: int, end: int, target: AppendFile) -> None:
    """Append bytes start … end-1 of one file to another."""
    with source.open("rb") as file:
        file.seek(start)
        while start < end:
            data = file.read(min(_COPY, end - start))
            if not data:
                raise OSError(f"{source} has become shorter")
            target.append(data)
            start += len(data)


def replace(new: Path, old: Path) -> None:
    """Replace a file by another one, durably."""
    new.replace(old)
    sync_folder(old.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """A lock of the engine that uses a file; the kernel releases it if the engine dies."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises BlockingIOError if another process holds it, OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


_PATIENCE = 2.0  # seconds for which commands may wait in memory for a busy disk
_BACKLOG = 64 << 20  # most bytes of waiting commands

log = logging.getLogger("rstream.engine")


class PersistenceError(Exception):
    """The engine cannot store its data; one line with the reason."""


class AofWriter:
    """Writes to `file`, which Persistence sets; None: nothing is stored."""

    def __init__(self, engine: PersistedEngine) -> None:
        self._engine = engine
        self.file: AppendFile | None = None
        self.policy = ""
        engine.config.on_change("appendfsync", self._set_policy)
        self.delayed = 0  # commits that waited for the disk
        self._waiting: list[bytes] = []
        self._waiting_since = 0.0
        self._dirty = False  # written, but not flushed
        self._syncing: threading.Thread | None = None
        self._sync_problem: OSError | None = None

    def _set_policy(self) -> None:
        self.policy = self._engine.config.text("appendfsync")

    @property
    def waiting(self) -> int:
        """Number of bytes that wait for a busy disk."""
        return sum(map(len, self._waiting))

    @property
    def syncing(self) -> bool:
        """Whether the thread is flushing."""
        return self._syncing is not None

    @property
    def flushed(self) -> bool:
        """Whether all changes are on disk."""
        return self._syncing is None and not self._dirty and not self._waiting

    def commit(self) -> None:
        """Write the journal. Raises PersistenceError if that fails with `always`."""
        journal = self._engine.journal
        if journal is None or self.file is None:
            return
        data = journal.take()
        if data:
            if not self._waiting:
                self._waiting_since = time.monotonic()
            self._waiting.append(data)
        if self.policy == "always":
            self._write()
            self._sync_file(self.file)
        elif self._syncing is None or self._has_waited():
            self._write()

    def commit_now(self) -> None:
        """Write the journal and all bytes that wait for a busy disk, as far as writing succeeds."""
        self.commit()
        self._write()

    def commit_all(self) -> None:
        """As `commit_now`. Raises PersistenceError if something cannot be written."""
        self.commit_now()
        if self._waiting and self.file is not None:
            raise PersistenceError(f"cannot write to {self.file.path}")

    def _has_waited(self) -> bool:
        """Whether the waiting commands must be written now."""
        if time.monotonic() - self._waiting_since < _PATIENCE and sum(map(len, self._waiting)) < _BACKLOG:
            return False
        self.delayed += 1
        return True

    def _write(self) -> None:
        file, journal = self.file, self._engine.journal
        if not self._waiting or file is None or journal is None:
            return
        try:
            file.append(b"".join(self._waiting))
        except OSError as problem:
            self._refuse(file, problem)
            return
        self._waiting.clear()
        self._dirty = True
        if journal.refusal and self._sync_problem is None:
            log.warning("the append-only file can be written again")
            journal.refusal = ""

    def _refuse(self, file: AppendFile, problem: OSError) -> None:
        reason = problem.strerror or str(problem)
        if self.policy == "always":
            raise PersistenceError(f"cannot write to {file.path}: {reason}. With appendfsync always the engine stops")
        journal = self._engine.journal
        if journal is not None and not journal.refusal:
            log.error("cannot write to %s: %s; refusing commands that change data", file.path, reason)
            journal.refusal = f"MISCONF Errors writing to the AOF file: {reason}"

    def _sync_file(self, file: AppendFile) -> None:
        if not self._dirty:
            return
        try:
            file.sync()
        except OSError as problem:
            raise PersistenceError(f"cannot flush {file.path} to disk: {problem.strerror or problem}") from None
        self._dirty = False

    def sync(self) -> None:
        """Flush all changes to disk. Raises PersistenceError."""
        if self._syncing is not None:
            self._syncing.join()
        self.commit_all()
        if self.file is not None:
            self._sync_file(self.file)

    def sync_soon(self) -> None:
        """Start to flush all changes to disk; `flushed` is true afterwards. Raises PersistenceError."""
        self.commit_all()
        if self._syncing is None and self.file is not None and self._dirty:
            self._sync_in_background(self.file)

    def cron(self) -> None:
        """Commit and flush; called about once a second, and when woken. Raises PersistenceError."""
        if self._syncing is None and self.file is not None:
            self.commit()
            if self._dirty and self.policy == "everysec":
                self._sync_in_background(self.file)

    def _sync_in_background(self, file: AppendFile) -> None:
        def work() -> None:
            try:
                file.sync()
                self._sync_problem = None
            except OSError as problem:
                self._sync_problem = problem
                self._dirty = True
            self._syncing = None
            self._engine.wake()
            journal = self._engine.journal
            if journal is not None and self._sync_problem is not None:
                self._refuse(file, self._sync_problem)

        self._dirty = False
        self._syncing = threading.Thread(target=work, name="fsync", daemon=True)
        self._syncing.start()

    def continue_with(self, new: AppendFile) -> None:
        """Write to this file from now on: it has replaced the previous one."""
        old, self.file = self.file, new
        assert old is not None
        new.path = old.path
        self._dirty = True
        # A thread that flushes the old file still needs its descriptor. Closing the last descriptor of a big file
        # takes time.
        syncing = self._syncing

        def let_go() -> None:
            if syncing is not None:
                syncing.join()
            old.close()
            with contextlib.suppress(OSError):
                sync_folder(new.path.parent)

        threading.Thread(target=let_go, name="close", daemon=True).start()

    def stop(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None
