"""The append-only file of an engine, from loading to closing.

aof_writer.py writes and flushes it, aof_rewrite.py makes it shorter, aof_loader.py loads it.

There is no other file: SAVE and BGSAVE flush this one, and fail if there is none.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from spark_streams.engine.journal import Journal
from spark_streams.engine.persistence import aof_snapshot
from spark_streams.engine.persistence.aof_loader import Loader, TornFileError
from spark_streams.engine.persistence.aof_rewrite import TEMPORARY, Rewriter
from spark_streams.engine.persistence.aof_writer import (
    AofWriter,
    AppendFile,
    FolderLock,
    PersistedEngine,
    PersistenceError,
    replace,
)
from spark_streams.engine.settings import SettingError

_LOCK_PATIENCE = 2.0  # seconds to wait for an engine that is stopping

log = logging.getLogger("rstream.engine")


class Persistence:
    """The append-only file of one engine; not in use until `start`."""

    def __init__(self, engine: PersistedEngine) -> None:
        self._engine = engine
        self._config = engine.config
        self.ready = False  # whether all settings are known; from then on appendonly can be switched
        self.writer = AofWriter(engine)
        self.rewriter = Rewriter(engine, self.writer)
        self._config.on_change("appendonly", self._switch)
        self.saved_at = 0  # Unix seconds at which all data was last on disk by request
        self.saved_changes = 0
        self.load_seconds = 0.0
        self._lock: FolderLock | None = None
        self._loader: Loader | None = None  # while the file is loaded
        self._save_pending = False  # BGSAVE

    @property
    def directory(self) -> Path:
        """The folder of the file."""
        return Path(self._config.text("dir") or ".")

    @property
    def filename(self) -> str:
        """Name of the file."""
        return self._config.text("appendfilename")

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.directory / self.filename

    @property
    def enabled(self) -> bool:
        """Whether changes are stored."""
        return self.writer.file is not None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.writer.file.size if self.writer.file is not None else 0

    @property
    def busy(self) -> bool:
        """Whether `cron` has work that must not wait for its next second."""
        return self.rewriter.busy or self._save_pending

    # Start and stop

    def lock_file(self) -> None:
        """Lock the file, and with it the sockets of its folder, for this engine. Raises PersistenceError."""
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

    def start(self) -> None:
        """Load the file, and store changes from now on. Locks the file if it is not locked.

        Raises PersistenceError, CorruptFileError, LoadingStoppedError.
        """
        self.ready = True
        if not self._config.flag("appendonly"):
            return
        if self._lock is None:
            self.lock_file()
        try:
            for leftover in self.directory.glob(f"{TEMPORARY}*.aof"):
                leftover.unlink(missing_ok=True)
            if self.path.exists():
                self.load(serve_clients=True)
            if not self._config.flag("appendonly"):  # a client has switched it off during loading
                self.stop()
                return
            file = self.writer.file = AppendFile(self.path)
        except OSError as problem:
            raise PersistenceError(f"cannot use {self.path}: {problem.strerror or problem}") from None
        self.rewriter.base_size = file.size
        self._engine.journal = Journal()
        self.saved_changes = self._changes()

    def load(self, serve_clients: bool = False) -> None:
        """Load the file into an empty keyspace; cut off a torn end. serve_clients: serve clients meanwhile.

        Raises CorruptFileError, LoadingStoppedError, OSError.
        """
        began = time.monotonic()
        loader = self._loader = Loader(self._engine, self.path, serve_clients)
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
        finally:
            self._loader = None
        self.load_seconds = time.monotonic() - began
        log.info("loaded %d commands from %s in %.3f s", loader.commands, self.path, self.load_seconds)

    def reload(self) -> None:
        """Clear the keyspace and load the file. Raises PersistenceError, CorruptFileError."""
        if self.rewriter.busy:
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
        self.saved_changes = self._changes()
        if journal is not None:
            journal.selected = -1

    def stop(self) -> None:
        """Flush all changes to disk and close the file. Raises PersistenceError."""
        self.rewriter.abandon()
        if self.writer.file is not None:
            self.sync()
            self.writer.stop()
        self._engine.journal = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Saving

    def sync(self) -> None:
        """Flush all changes to disk. Raises PersistenceError."""
        self.writer.sync()
        self.record_save()

    def sync_soon(self) -> None:
        """Start to flush all changes to disk; `busy` until they are there. Raises PersistenceError."""
        self.writer.sync_soon()
        self._save_pending = True

    def record_save(self) -> None:
        """Record that all data is on disk now."""
        self.saved_at = self._engine.now // 1000
        self.saved_changes = self._changes()

    def _changes(self) -> int:
        return sum(db.changes for db in self._engine.databases)

    def cron(self) -> None:
        """Write, flush and rewrite as needed; called about once a second, and when woken. Raises PersistenceError."""
        if self.writer.file is None:
            return
        self.writer.cron()
        if self._save_pending and self.writer.flushed:
            self._save_pending = False
            self.record_save()
        if self.rewriter.cron():
            self.record_save()

    def info(self) -> dict[str, object]:
        """Return the fields of INFO persistence."""
        journal = self._engine.journal
        writing = "err" if journal is not None and journal.refusal else "ok"
        fields: dict[str, object] = {
            "rdb_changes_since_last_save": self._changes() - self.saved_changes,
            "rdb_bgsave_in_progress": int(self._save_pending),
            "rdb_last_save_time": self.saved_at,
            "rdb_last_bgsave_status": writing,
            "aof_enabled": int(self.enabled),
            "aof_rewrite_in_progress": int(self.rewriter.busy),
            "aof_rewrite_scheduled": 0,
            "aof_last_rewrite_time_sec": self.rewriter.seconds,
            "aof_last_bgrewrite_status": "ok" if self.rewriter.ok else "err",
            "aof_last_write_status": writing,
        }
        if self.enabled:
            fields |= {
                "aof_current_size": self.size,
                "aof_base_size": self.rewriter.base_size,
                "aof_buffer_length": self.writer.waiting,
                "aof_pending_bio_fsync": int(self.writer.syncing),
                "aof_delayed_fsync": self.writer.delayed,
                "aof_last_load_seconds": f"{self.load_seconds:.3f}",
                "aof_last_rewrite_pause_ms": f"{self.rewriter.pause * 1000:.1f}",
            }
        return fields | (_progress(self._loader, self._engine.now) if self._loader is not None else {})

    # Settings

    def _switch(self) -> None:
        """Apply CONFIG SET appendonly. Raises SettingError."""
        should_be_enabled = self._config.flag("appendonly")
        if not self.ready or self._engine.loading or should_be_enabled == self.enabled:
            return
        try:
            if should_be_enabled:
                self._begin()
            else:
                self.stop()
        except PersistenceError as problem:
            raise SettingError(str(problem)) from None

    def _begin(self) -> None:
        """Write all data to a new file before returning, because the reply of CONFIG SET confirms it."""
        path = self.directory / f"{TEMPORARY}{os.getpid()}.aof"
        try:
            self._lock = FolderLock(self.directory / f".{self.filename}.lock")
            new = AppendFile(path)
            for db in self._engine.databases:
                for piece in aof_snapshot.database_commands(db):
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
        self.writer.file = new
        self.rewriter.base_size = new.size
        self._engine.journal = Journal()
        self.record_save()


def _progress(loader: Loader, now: int) -> dict[str, object]:
    """Return INFO's fields about the progress of loading."""
    passed = (now - loader.began) / 1000
    seconds_left = (loader.size - loader.read) * passed / loader.read if loader.read else -1
    return {
        "loading_start_time": loader.began // 1000,
        "loading_total_bytes": loader.size,
        "loading_loaded_bytes": loader.read,
        "loading_loaded_perc": f"{100 * loader.read / max(loader.size, 1):.2f}",
        "loading_eta_seconds": round(seconds_left),
    }
