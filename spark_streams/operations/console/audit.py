"""The audit log: two lines of JSON for each change, at its begin and end.

The file can be read by its owner only. A change whose first line cannot be written does not begin.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from spark_streams.base.printable import json_text
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.change import Change

# Of a command's JSON output.
_COUNTS = ("added", "sent", "entries", "moved", "parked", "deleted", "read_again", "skipped", "pending")


def open_audit(path: Path) -> Callable[[str], None]:
    """Return a function that appends a line to the file. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise ConfigError(f"the audit log {path} cannot be written: {error.strerror}") from error

    def append(line: str) -> None:
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return append


class Audit:
    """write: receives each line; allowed: values that a line may have. Each method raises ConfigError if the line
    cannot be written."""

    def __init__(self, write: Callable[[str], None], allowed: AllowList) -> None:
        self._write, self._allowed = write, allowed

    def begin(self, change: Change) -> None:
        """Write the first line of a change: when, who, what."""
        self._add({"event": "change begins", **_named(self._allowed.change(change))})

    def end(self, change: Change) -> None:
        """Write the last line of a change: its exit code, and how many entries it has changed."""
        change = self._allowed.change(change)
        outcome = change.outcome
        line = {"event": "change ends", **_named(change), "exit_code": None if outcome is None else outcome.code}
        if outcome is not None and isinstance(outcome.output, dict):
            line |= _counts(outcome.output)
        if outcome is not None and outcome.code:
            line["error"] = outcome.error[:500]
        self._add(line)

    def _add(self, line: dict[str, Json]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._write(json_text({"at": now, **line}))
        except OSError as error:
            raise ConfigError(f"the audit log cannot be written: {error.strerror}; make room for it") from error


def _named(change: Change) -> dict[str, Json]:
    return {"change": change.number, "user": change.user, "command": ["rstream", *change.arguments]}


def _counts(output: dict[str, Json]) -> dict[str, int]:
    """Return the numbers of a command's output: its own, or the sums of its streams."""
    rows = [output, *[row for row in output.get("streams", ()) if isinstance(row, dict)]]
    counts: dict[str, int] = {}
    for row in rows:
        for name in _COUNTS:
            if isinstance(row.get(name), int):
                counts[name] = counts.get(name, 0) + row[name]
    return counts
