"""Keeping what the engine holds: the append-only file's life, and when it is written, made sure and rewritten.

    commands ──► journal ──► commit, once per turn of the server's loop ──► file ──► fsync
                              replies leave after it

    appendfsync always      commit returns when the disk has it
                everysec    commit writes; a thread makes sure every second, and the loop never waits for it: while the
                            disk is busy, what is written waits in memory for up to two seconds
                no          commit writes; the operating system makes sure when it likes

Rewriting (BGREWRITEAOF, or by itself when the file has grown enough) is a fork: the child writes the key space as it
was (snapshot.py) to a new file, while the engine goes on appending to the old one. What the old one has gained since
the fork is then appended to the new one by a thread, and the very last of it by the loop, which puts the new file in
the old one's place.

When the disk refuses: with `always` the engine stops, because it has answered nothing that it cannot keep; otherwise
commands that change something are answered with MISCONF until writing works again.

There is no second kind of file: SAVE and BGSAVE make sure of this one, and are errors where there is none.
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
from typing import TYPE_CHECKING

from spark_streams.engine import snapshot
from spark_streams.engine.aof import AppendFile, FolderLock, copy_tail, replace, sync_folder
from spark_streams.engine.journal import Journal
from spark_streams.engine.loading import CorruptFileError, Loader, TornFileError
from spark_streams.engine.settings import SettingError

if TYPE_CHECKING:
    from spark_streams.engine.core import Engine

_PATIENCE = 2.0  # seconds that written commands may wait in memory for a busy disk
_BACKLOG = 64 << 20  # bytes of them
_LAST_BYTES = 256 * 1024  # the loop itself copies no more than about so much at the end of a rewrite
_LOCK_PATIENCE = 2.0  # seconds for an engine that is about to end
_TEMPORARY = "temp-rewriteaof-"

log = logging.getLogger("rstream.engine")


class PersistenceError(Exception):
    """The engine cannot keep what it was asked to keep; one line that says why."""


class Persistence:
    """The append-only file of one engine; off until `start`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._config = engine.config
        self.ready = False  # whether the settings are all in; from then on appendonly can be switched
        self.policy = ""
        self._config.when("appendfsync", self._set_policy)
        self._config.when("appendonly", self._switch)
        self.saved_at = 0  # Unix seconds of the last time that all was on disk by request
        self.saved_changes = 0
        self.delayed = 0  # commits that had to wait for the disk
        self.load_seconds = 0.0
        self.rewrite_pause = 0.0  # seconds that the last rewrite held the loop
        self.rewrite_ok = True
        self.rewrite_seconds = -1
        self.base_size = 0  # after the last rewrite or start
        self._file: AppendFile | None = None
        self._lock: FolderLock | None = None
        self._waiting: list[bytes] = []
        self._waiting_since = 0.0
        self._dirty = False  # written, not yet made sure
        self._syncing: threading.Thread | None = None
        self._sync_problem: OSError | None = None
        self._rewrite: _Rewrite | None = None
        self._save_wanted = False  # BGSAVE

    @property
    def directory(self) -> Path:
        """The folder of the file."""
        return Path(self._config.text("dir") or ".")

    @property
    def filename(self) -> str:
        """Its name."""
        return self._config.text("appendfilename")

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / self.filename

    @property
    def enabled(self) -> bool:
        """Whether changes are kept."""
        return self._file is not None

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size if self._file is not None else 0

    @property
    def rewriting(self) -> bool:
        """Whether a rewrite is under way."""
        return self._rewrite is not None

    @property
    def busy(self) -> bool:
        """Whether `cron` has something to wait for."""
        return self._rewrite is not None or self._save_wanted

    # Beginning and end

    def start(self) -> None:
        """Lock the file, read it back, and keep what changes from now on. Raises PersistenceError, CorruptFileError."""
        self.ready = True
        if not self._config.flag("appendonly"):
            return
        deadline = time.monotonic() + _LOCK_PATIENCE
        while self._lock is None:
            try:
                self._lock = FolderLock(self.directory / f".{self.filename}.lock")
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PersistenceError(f"{self.path} is in use by another engine") from None
                time.sleep(0.05)
            except OSError as problem:
                raise PersistenceError(f"cannot use {self.directory}: {problem.strerror or problem}") from None
        try:
            for leftover in self.directory.glob(f"{_TEMPORARY}*.aof"):
                leftover.unlink(missing_ok=True)
            if self.path.exists():
                self.load()
            self._file = AppendFile(self.path)
        except OSError as problem:
            raise PersistenceError(f"cannot use {self.path}: {problem.strerror or problem}") from None
        self.base_size = self._file.size
        self._engine.journal = Journal()
        self.saved_changes = self._changes()

    def load(self) -> None:
        """Read the file into an empty key space; a torn end is cut off. Raises CorruptFileError, OSError."""
        began = time.monotonic()
        loader = Loader(self._engine, self.path)
        try:
            loader.load()
        except TornFileError as torn:
            if not self._config.flag("aof-load-truncated"):
                raise
            size = self.path.stat().st_size
            log.warning(
                "%s: %s; cut off at offset %d, %d bytes dropped", self.path, torn.reason, torn.offset,
                size - torn.offset,
            )  # fmt: skip
            os.truncate(self.path, torn.offset)
        self.load_seconds = time.monotonic() - began
        log.info("%d commands read back from %s in %.3f s", loader.commands, self.path, self.load_seconds)

    def reload(self) -> None:
        """Forget everything and read the file back. Raises PersistenceError, CorruptFileError."""
        if self._rewrite is not None:
            raise PersistenceError("a rewrite is in progress")
        journal, self._engine.journal = self._engine.journal, None
        try:
            for db in self._engine.databases:
                db.clear()
            self.load()
        except OSError as problem:
            raise PersistenceError(f"cannot read {self.path}: {problem.strerror or problem}") from None
        finally:
            self._engine.journal = journal
        if journal is not None:
            journal.selected = -1

    def stop(self) -> None:
        """Everything to the disk, and let go of the file. Raises PersistenceError."""
        if self._rewrite is not None:
            self._rewrite.abandon()
            self._rewrite = None
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None
        self._engine.journal = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Writing

    def commit(self) -> None:
        """Write what the journal holds. Raises PersistenceError with `always` when that is not possible."""
        journal = self._engine.journal
        if journal is None or self._file is None:
            return
        data = journal.take()
        if data:
            if not self._waiting:
                self._waiting_since = time.monotonic()
            self._waiting.append(data)
        if self.policy == "always":
            self._write()
            self._sync_file(self._file)
        elif self._syncing is None or self._has_waited():
            self._write()

    def _has_waited(self) -> bool:
        """Whether what waits for a busy disk may wait no longer."""
        if time.monotonic() - self._waiting_since < _PATIENCE and sum(map(len, self._waiting)) < _BACKLOG:
            return False
        self.delayed += 1
        return True

    def _write(self) -> None:
        file, journal = self._file, self._engine.journal
        if not self._waiting or file is None or journal is None:
            return
        try:
            file.append(b"".join(self._waiting))
        except OSError as problem:
            self._refuse(problem)
            return
        self._waiting.clear()
        self._dirty = True
        if journal.refusal and self._sync_problem is None:
            log.warning("the append-only file can be written again")
            journal.refusal = ""

    def _refuse(self, problem: OSError) -> None:
        reason = problem.strerror or str(problem)
        if self.policy == "always":
            raise PersistenceError(f"cannot write to {self.path}: {reason}; with appendfsync always that is the end")
        journal = self._engine.journal
        if journal is not None and not journal.refusal:
            log.error("cannot write to %s: %s; refusing commands that change something", self.path, reason)
            journal.refusal = f"MISCONF Errors writing to the AOF file: {reason}"

    def _sync_file(self, file: AppendFile) -> None:
        if not self._dirty:
            return
        try:
            file.sync()
        except OSError as problem:
            raise PersistenceError(f"cannot make sure of {self.path}: {problem.strerror or problem}") from None
        self._dirty = False

    def sync(self) -> None:
        """Return when everything so far is on the disk. Raises PersistenceError."""
        if self._syncing is not None:
            self._syncing.join()
        self.commit()
        self._write()
        if self._waiting:
            raise PersistenceError(f"cannot write to {self.path}")
        if self._file is not None:
            self._sync_file(self._file)
        self.saved()

    def sync_soon(self) -> None:
        """Begin to bring everything so far to the disk; `busy` until it is there. Raises PersistenceError."""
        self.commit()
        self._write()
        if self._waiting:
            raise PersistenceError(f"cannot write to {self.path}")
        self._save_wanted = True
        if self._syncing is None and self._file is not None and self._dirty:
            self._sync_in_background(self._file)

    def saved(self) -> None:
        """Remember that now is a moment that lasts."""
        self.saved_at = self._engine.now // 1000
        self.saved_changes = self._changes()

    def _changes(self) -> int:
        return sum(db.changes for db in self._engine.databases)

    def cron(self) -> None:
        """About once a second, and when woken. Raises PersistenceError."""
        if self._file is None:
            return
        if self._syncing is None:
            self.commit()
            if self._dirty and self.policy == "everysec":
                self._sync_in_background(self._file)
        if self._save_wanted and self._syncing is None and not self._dirty and not self._waiting:
            self._save_wanted = False
            self.saved()
        if self._rewrite is not None:
            self._go_on_rewriting()
        elif self.rewrite_ok and self._file.size >= self._config.number("auto-aof-rewrite-min-size"):
            grown = self._file.size - self.base_size
            percentage = self._config.number("auto-aof-rewrite-percentage")
            if percentage and grown * 100 >= self.base_size * percentage:
                log.info("the append-only file has grown to %d bytes: rewriting it", self._file.size)
                self.rewrite()

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
                self._refuse(self._sync_problem)

        self._dirty = False
        self._syncing = threading.Thread(target=work, name="fsync", daemon=True)
        self._syncing.start()

    # Rewriting

    def rewrite(self) -> None:
        """Begin to rewrite the file in the background. Raises PersistenceError when it cannot begin."""
        began = time.monotonic()
        file, journal = self._file, self._engine.journal
        assert file is not None
        assert journal is not None
        self.commit()
        self._write()
        if self._waiting:
            raise PersistenceError(f"cannot write to {self.path}")
        journal.selected = -1  # the rewritten file ends in any database
        try:
            self._rewrite = _Rewrite(self._engine, file, self.directory / f"{_TEMPORARY}{os.getpid()}.aof")
        except OSError as problem:
            raise PersistenceError(f"cannot rewrite {self.path}: {problem.strerror or problem}") from None
        self.rewrite_pause = time.monotonic() - began

    def _go_on_rewriting(self) -> None:
        rewrite, file, journal = self._rewrite, self._file, self._engine.journal
        assert rewrite is not None
        assert file is not None
        assert journal is not None
        if not rewrite.done:
            return
        began = time.monotonic()
        self.rewrite_seconds = round(began - rewrite.began)
        new = rewrite.result
        self._rewrite = None
        self.rewrite_ok = new is not None
        if new is None:
            log.error("rewriting %s failed: %s", self.path, rewrite.problem)
            return
        try:
            self.commit()
            self._write()
            copy_tail(self.path, rewrite.copied, file.size, new)
            if self.policy == "always":
                new.sync()
            new.path.replace(self.path)
        except OSError as problem:
            self.rewrite_ok = False
            log.error("rewriting %s failed: %s", self.path, problem)
            new.close()
            new.path.unlink(missing_ok=True)
            return
        before, self._file = file.size, new
        new.path = self.path
        self._dirty = True
        # A thread that still makes sure of the old file must find its descriptor, not another's; and closing the last
        # descriptor of a big file takes time.
        syncing = self._syncing

        def let_go() -> None:
            if syncing is not None:
                syncing.join()
            file.close()
            with contextlib.suppress(OSError):
                sync_folder(new.path.parent)

        threading.Thread(target=let_go, name="close", daemon=True).start()
        self.base_size = new.size
        self.saved()
        self.rewrite_pause += time.monotonic() - began
        log.info("rewrote %s: %d bytes before, %d now", self.path, before, new.size)

    def info(self) -> dict[str, object]:
        """INFO persistence."""
        journal = self._engine.journal
        writing = "err" if journal is not None and journal.refusal else "ok"
        found: dict[str, object] = {
            "rdb_changes_since_last_save": self._changes() - self.saved_changes,
            "rdb_bgsave_in_progress": int(self._save_wanted),
            "rdb_last_save_time": self.saved_at,
            "rdb_last_bgsave_status": writing,
            "aof_enabled": int(self.enabled),
            "aof_rewrite_in_progress": int(self.rewriting),
            "aof_rewrite_scheduled": 0,
            "aof_last_rewrite_time_sec": self.rewrite_seconds,
            "aof_last_bgrewrite_status": "ok" if self.rewrite_ok else "err",
            "aof_last_write_status": writing,
        }
        if self.enabled:
            found |= {
                "aof_current_size": self.size,
                "aof_base_size": self.base_size,
                "aof_buffer_length": sum(map(len, self._waiting)),
                "aof_pending_bio_fsync": int(self._syncing is not None),
                "aof_delayed_fsync": self.delayed,
                "aof_last_load_seconds": f"{self.load_seconds:.3f}",
                "aof_last_rewrite_pause_ms": f"{self.rewrite_pause * 1000:.1f}",
            }
        return found

    # Settings

    def _set_policy(self) -> None:
        self.policy = self._config.text("appendfsync")

    def _switch(self) -> None:
        """CONFIG SET appendonly. Raises SettingError."""
        wanted = self._config.flag("appendonly")
        if not self.ready or wanted == self.enabled:
            return
        try:
            if wanted:
                self._begin()
            else:
                self.stop()
        except PersistenceError as problem:
            raise SettingError(str(problem)) from None

    def _begin(self) -> None:
        """Keep what there is, and what changes from now on; at once, because the answer means that it is kept."""
        path = self.directory / f"{_TEMPORARY}{os.getpid()}.aof"
        try:
            self._lock = FolderLock(self.directory / f".{self.filename}.lock")
            new = AppendFile(path)
            for db in self._engine.databases:
                for piece in snapshot.database(db):
                    new.append(piece)
            new.sync()
            replace(path, self.path)
        except BlockingIOError:
            raise PersistenceError(f"{self.path} is in use by another engine") from None
        except OSError as problem:
            if self._lock is not None:
                self._lock.release()
                self._lock = None
            raise PersistenceError(f"cannot use {self.path}: {problem.strerror or problem}") from None
        new.path = self.path
        self._file = new
        self.base_size = new.size
        self._engine.journal = Journal()
        self.saved()


class _Rewrite:
    """One rewrite: a child that writes, and a thread that waits for it and appends what has come meanwhile.

    `done` is set last. Then `result` is the new file with everything up to byte `copied` of the old one, or None, and
    `problem` says why.
    """

    def __init__(self, engine: Engine, old: AppendFile, path: Path) -> None:
        self.began = time.monotonic()
        self.copied = old.size
        self.done = False
        self.result: AppendFile | None = None
        self.problem = ""
        self._engine = engine
        self._old = old
        self._path = path
        self._abandoned = False
        path.unlink(missing_ok=True)
        with warnings.catch_warnings():
            # Python warns of forks beside threads. The child touches no lock that another thread could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.child = os.fork()
        if not self.child:
            _be_the_child(engine, path)
        self._thread = threading.Thread(target=self._wait, name="rewrite", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        new: AppendFile | None = None
        try:
            _, status = os.waitpid(self.child, 0)
            if status:
                raise OSError(f"the child ended with {status}")
            new = AppendFile(self._path)
            while self._old.size - self.copied > _LAST_BYTES:
                end = self._old.size
                copy_tail(self._old.path, self.copied, end, new)
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
        """Stop it, and leave nothing behind."""
        if not self.done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
        self._thread.join()
        if self.result is not None:
            self.result.close()
        self._path.unlink(missing_ok=True)


def _be_the_child(engine: Engine, path: Path) -> None:
    """Write the key space as it was at the fork, and end."""
    code = 1
    try:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        # Sockets of clients that the engine closes must not stay open here, nor its locks held.
        os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))
        parent = os.getppid()
        with path.open("wb", buffering=1 << 20) as file:
            path.chmod(0o600)
            for db in engine.databases:
                for piece in snapshot.database(db):
                    file.write(piece)
                    if os.getppid() != parent:
                        os._exit(1)
            file.flush()
            os.fsync(file.fileno())
        code = 0
    except BaseException:  # noqa: BLE001  whatever it is, the child must not go on as a second engine
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


__all__ = ["CorruptFileError", "Persistence", "PersistenceError"]
