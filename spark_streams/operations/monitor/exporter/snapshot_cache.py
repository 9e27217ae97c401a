"""The snapshot that scrapes share: a scrape within a few seconds gets the last one, a scrape during a snapshot waits
for it. So the server's load does not depend on the number of scrapes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from spark_streams.base.printable import name_text
from spark_streams.connector.admin.streams import KeptConnection, MarginWindow
from spark_streams.connector.errors import NotPermittedError, RStreamError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import LONGEST_NAME
from spark_streams.operations.monitor.exporter.dead_letters import SECONDS, DeadLetters
from spark_streams.operations.monitor.exporter.snapshot import Snapshot, take_snapshot
from spark_streams.operations.monitor.exporter.stream_filter import StreamFilter

MAX_GROUPS = 10_000  # by default
_NAMED = 50  # maximum number of missing rights, and of missing streams, that are named


class SnapshotCache:
    """The current snapshot of one server, for any thread.

    max_age: seconds for which a snapshot is used; max_seconds: that it may take; tell: receives one line for each
    problem when it begins, and when the server answers again; dead_letter_seconds: per snapshot for reading dead
    letters; now: a monotonic clock, in seconds; max_groups: the others are only counted.
    """

    def __init__(
        self,
        address: Address,
        stream_filter: StreamFilter,
        max_age: float,
        max_seconds: float,
        tell: Callable[[str], None],
        dead_letter_seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        self.stream_filter = stream_filter
        self._max_groups = max_groups
        self._max_age, self._max_seconds = max_age, max_seconds
        self._tell, self._now = tell, now
        self._connection = KeptConnection(address, lambda error: tell(str(error)))
        self._dead_letters = DeadLetters(seconds=dead_letter_seconds, now=now)
        self._margins = MarginWindow()
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._until = float("-inf")
        self._reported: set[str] = set()
        self._rights: dict[str, None] = {}

    def last(self) -> Snapshot | None:
        """Return a snapshot that is at most `max_age` seconds old; None if the server does not answer."""
        with self._lock:
            if self._now() >= self._until:
                did_answer = self._connection.answers
                self._last = None
                if self._connection.use(self._refresh) and not did_answer:
                    self._tell(f"{self._connection.address} answers again")
                self._until = self._now() + self._max_age
            return self._last

    @property
    def failure(self) -> RStreamError | None:
        """Why the last snapshot failed."""
        return self._connection.failure

    @property
    def rights(self) -> Sequence[str]:
        """The rights that the user lacks, as ACL SETUSER writes them."""
        return tuple(self._rights)

    def close(self, wait: float = 1.0) -> None:
        """Close the connection, unless a snapshot is being taken for longer than `wait` seconds."""
        if self._lock.acquire(timeout=wait):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def _refresh(self, server: Server) -> None:
        self._rights.clear()
        names = self.stream_filter.streams(server)
        self._last = take_snapshot(
            server,
            names,
            self._dead_letters,
            self._margins,
            self._is_refused,
            self._max_seconds,
            self._max_groups,
            self._now,
        )
        existing = {stream.stream for stream in self._last.streams}
        missing = sorted({*map(name_text, self.stream_filter.names)} - existing)
        for name in missing[:_NAMED]:
            self._report_once(f"stream {name!r} does not exist yet at {server.address}")
        if left_out := self._last.groups_left_out:
            address = self._connection.address
            self._report_once(f"{left_out:,} more groups at {address} are left out; use --max-groups", "groups")
        if too_many := self.stream_filter.too_many:
            self._report_once(f"{too_many:,} more streams at {server.address} are left out; use --max-streams")
        if too_long := self.stream_filter.too_long:
            why = f"names of more than {LONGEST_NAME:,} bytes"
            self._report_once(f"{too_long:,} streams at {server.address} are left out: they have {why}")

    def _is_refused(self, error: RStreamError) -> None:
        if not isinstance(error, NotPermittedError):
            self._report_once(str(error))
            return
        if len(self._rights) < _NAMED:
            self._rights[error.right] = None
        self._report_once(str(error), error.right)

    def _report_once(self, line: str, about: str = "") -> None:
        """Report a line once for each subject."""
        about = about or line
        if about not in self._reported and len(self._reported) < 10 * _NAMED:
            self._reported.add(about)
            self._tell(line)
