"""Writing the append-only file: what the journal holds goes to it, and is made sure.

    commands ──► journal ──► commit, once per turn of the server's loop ──► file ──► fsync
                              replies leave after it

    appendfsync always      commit returns when the disk has it
                everysec    commit writes; a thread makes sure every second, and the loop never waits for it: while the
                            disk is busy, what is written waits in memory for up to two seconds
                no          commit writes; the operating system makes sure when it likes

When the disk refuses: with `always` the engine stops, because it has answered nothing that it cannot keep; otherwise
commands that change something are answered with MISCONF until writing works again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from spark_streams.engine.persistence.append_file import AppendFile, sync_folder
from spark_streams.engine.persistence.kept_engine import KeptEngine

_PATIENCE = 2.0  # seconds that written commands may wait in memory for a busy disk
_BACKLOG = 64 << 20  # bytes of them

log = logging.getLogger("rstream.engine")


class PersistenceError(Exception):
    """The engine cannot keep what it was asked to keep; one line that says why."""


class Writer:
    """Writes to `file`, which persistence gives and takes away: None while nothing is kept."""

    def __init__(self, engine: KeptEngine) -> None:
        self._engine = engine
        self.file: AppendFile | None = None
        self.policy = ""
        engine.config.on_change("appendfsync", self._set_policy)
        self.delayed = 0  # commits that had to wait for the disk
        self._waiting: list[bytes] = []
        self._waiting_since = 0.0
        self._dirty = False  # written, not yet made sure
        self._syncing: threading.Thread | None = None
        self._sync_problem: OSError | None = None

    def _set_policy(self) -> None:
        self.policy = self._engine.config.text("appendfsync")

    @property
    def waiting(self) -> int:
        """Bytes that wait for a busy disk."""
        return sum(map(len, self._waiting))

    @property
    def syncing(self) -> bool:
        """Whether the thread is making sure."""
        return self._syncing is not None

    @property
    def settled(self) -> bool:
        """Whether everything so far is on the disk."""
        return self._syncing is None and not self._dirty and not self._waiting

    def commit(self) -> None:
        """Write what the journal holds. Raises PersistenceError with `always` when that is not possible."""
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
        """As `commit`, and what waited for a busy disk waits no longer, unless it cannot be written."""
        self.commit()
        self._write()

    def commit_all(self) -> None:
        """As `commit_now`. Raises PersistenceError when something cannot be written."""
        self.commit_now()
        if self._waiting and self.file is not None:
            raise PersistenceError(f"cannot write to {self.file.path}")

    def _has_waited(self) -> bool:
        """Whether what waits for a busy disk may wait no longer."""
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
            raise PersistenceError(f"cannot write to {file.path}: {reason}; with appendfsync always that is the end")
        journal = self._engine.journal
        if journal is not None and not journal.refusal:
            log.error("cannot write to %s: %s; refusing commands that change something", file.path, reason)
            journal.refusal = f"MISCONF Errors writing to the AOF file: {reason}"

    def _sync_file(self, file: AppendFile) -> None:
        if not self._dirty:
            return
        try:
            file.sync()
        except OSError as problem:
            raise PersistenceError(f"cannot make sure of {file.path}: {problem.strerror or problem}") from None
        self._dirty = False

    def sync(self) -> None:
        """Return when everything so far is on the disk. Raises PersistenceError."""
        if self._syncing is not None:
            self._syncing.join()
        self.commit_all()
        if self.file is not None:
            self._sync_file(self.file)

    def sync_soon(self) -> None:
        """Begin to bring everything so far to the disk; not `settled` until it is there. Raises PersistenceError."""
        self.commit_all()
        if self._syncing is None and self.file is not None and self._dirty:
            self._sync_in_background(self.file)

    def cron(self) -> None:
        """About once a second, and when woken. Raises PersistenceError."""
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

    def go_on_with(self, new: AppendFile) -> None:
        """Write to this file, which has taken the place of the one so far."""
        old, self.file = self.file, new
        assert old is not None
        new.path = old.path
        self._dirty = True
        # A thread that still makes sure of the old file must find its descriptor, not another's; and closing the last
        # descriptor of a big file takes time.
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
