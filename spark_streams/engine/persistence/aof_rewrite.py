"""Rewrites the append-only file: on BGREWRITEAOF, or when the file has grown enough.

A rewrite forks: the child writes the keyspace of that moment (aof_snapshot.py) to a new file, while the engine
continues to append to the old one. A thread then appends to the new file what the old one has gained since the fork.
The event loop appends the last part and replaces the old file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

from spark_streams.engine.persistence import aof_snapshot, aof_writer

TEMPORARY = "temp-rewriteaof-"  # prefix of a new file's name
_LAST_BYTES = 256 * 1024  # most bytes that the event loop copies at the end of a rewrite, approximately

log = logging.getLogger("rstream.engine")


class Rewriter:
    """Rewrites the writer's file; one rewrite at a time."""

    def __init__(self, engine: aof_writer.PersistedEngine, writer: aof_writer.AofWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._rewrite: Rewrite | None = None
        self.base_size = 0  # size of the file after the last rewrite or start
        self.ok = True  # whether the last rewrite succeeded
        self.seconds = -1  # duration of the last rewrite
        self.pause = 0.0  # seconds during which the last rewrite held the event loop

    @property
    def busy(self) -> bool:
        """Whether a rewrite is in progress."""
        return self._rewrite is not None

    def begin(self) -> None:
        """Start to rewrite the file in the background. Raises PersistenceError if it cannot start."""
        began = time.monotonic()
        file, journal = self._writer.file, self._engine.journal
        assert file is not None
        assert journal is not None
        self._writer.commit_all()
        journal.selected = -1  # the rewritten file may end in any database
        try:
            self._rewrite = Rewrite(self._engine, file, file.path.with_name(f"{TEMPORARY}{os.getpid()}.aof"))
        except OSError as problem:
            raise aof_writer.PersistenceError(f"cannot rewrite {file.path}: {problem.strerror or problem}") from None
        self.pause = time.monotonic() - began

    def cron(self) -> bool:
        """Continue or start a rewrite. Return whether a new file is in place. Raises PersistenceError."""
        file = self._writer.file
        if self._rewrite is not None:
            return self._rewrite.done and self._finish(self._rewrite)
        config = self._engine.config
        if self.ok and file is not None and file.size >= config.number("auto-aof-rewrite-min-size"):
            grown = file.size - self.base_size
            percentage = config.number("auto-aof-rewrite-percentage")
            if percentage and grown * 100 >= self.base_size * percentage:
                log.info("the append-only file has grown to %d bytes: rewriting it", file.size)
                self.begin()
        return False

    def _finish(self, rewrite: Rewrite) -> bool:
        began = time.monotonic()
        file = self._writer.file
        assert file is not None
        self.seconds = round(began - rewrite.began)
        new = rewrite.result
        self._rewrite = None
        self.ok = new is not None
        if new is None:
            log.error("rewriting %s failed: %s", file.path, rewrite.problem)
            return False
        try:
            self._writer.commit_now()
            aof_writer.copy_tail(file.path, rewrite.copied, file.size, new)
            if self._writer.policy == "always":
                new.sync()
            new.path.replace(file.path)
        except OSError as problem:
            self.ok = False
            log.error("rewriting %s failed: %s", file.path, problem)
            new.close()
            new.path.unlink(missing_ok=True)
            return False
        self._writer.continue_with(new)
        self.base_size = new.size
        self.pause += time.monotonic() - began
        log.info("rewrote %s: %d bytes before, %d now", file.path, file.size, new.size)
        return True

    def abandon(self) -> None:
        """Stop a rewrite and remove its file."""
        if self._rewrite is not None:
            self._rewrite.abandon()
            self._rewrite = None


class Rewrite:
    """One rewrite: a child that writes, and a thread that waits for it and appends the changes since the fork.

    `done` is set last. Then `result` is the new file with all bytes up to `copied` of the old one, or None with the
    reason in `problem`.
    """

    def __init__(self, engine: aof_writer.PersistedEngine, old: aof_writer.AppendFile, path: Path) -> None:
        self.began = time.monotonic()
        self.copied = old.size
        self.done = False
        self.result: aof_writer.AppendFile | None = None
        self.problem = ""
        self._engine = engine
        self._old = old
        self._path = path
        self._abandoned = False
        path.unlink(missing_ok=True)
        with warnings.catch_warnings():
            # Python warns of forks in multi-threaded processes. The child takes no lock that another thread could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.child = os.fork()
        if not self.child:
            _run_child(engine, path)
        self._thread = threading.Thread(target=self._wait, name="rewrite", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        new: aof_writer.AppendFile | None = None
        try:
            _, status = os.waitpid(self.child, 0)
            if status:
                raise OSError(f"the child ended with {status}")
            new = aof_writer.AppendFile(self._path)
            while self._old.size - self.copied > _LAST_BYTES:
                end = self._old.size
                aof_writer.copy_tail(self._old.path, self.copied, end, new)
                self.copied = end
            new.sync()
        except OSError as problem:
            self.problem = str(problem)
            if new is not None:
                new.close()
                new = None
            self._path.unlink(missing_ok=True)
        self.result = new
        self.done = True
        self._engine.wake()

    def abandon(self) -> None:
        """Stop the rewrite and remove its file."""
        if not self.done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
        self._thread.join()
        if self.result is not None:
            self.result.close()
        self._path.unlink(missing_ok=True)


def _run_child(engine: aof_writer.PersistedEngine, path: Path) -> None:
    """Write the keyspace of the moment of the fork, and exit."""
    code = 1
    try:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        # The child must not keep the engine's client sockets and locks open.
        os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))
        parent = os.getppid()
        with path.open("wb", buffering=1 << 20) as file:
            path.chmod(0o600)
            for db in engine.databases:
                for piece in aof_snapshot.database_commands(db):
                    file.write(piece)
                    if os.getppid() != parent:
                        os._exit(1)
            file.flush()
            os.fsync(file.fileno())
        code = 0
    except BaseException:  # noqa: BLE001  the child must never continue as a second engine
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)
