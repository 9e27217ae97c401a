"""One append-only file on disk: append, flush, replace. No engine, no policy.

An incomplete write is cut off, so that the file always ends with a whole command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

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
