"""Looks that scrapes share: whoever asks within a few seconds is given the last one, and who asks while one is under
way waits for it. So a server is looked at by one, however many ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from spark_streams.errors import NotPermittedError, RStreamError
from spark_streams.monitor.exporter.dead_letters import SECONDS, DeadLetters
from spark_streams.monitor.exporter.snapshot import Look, look
from spark_streams.monitor.exporter.stream_filter import Chosen
from spark_streams.monitor.kept_connection import KeptConnection
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server

_NAMED = 50  # rights, streams that are no streams … that are named; the rest is not


class Looks:
    """At the streams of one server, from any thread.

    every: seconds that a look serves; most_seconds: that it may take; tell: is given a line for each thing that is not
    well, when it begins, and for the server that answers again; letter_seconds: that dead letters are read for in a
    look; now: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        address: Address,
        chosen: Chosen,
        every: float,
        most_seconds: float,
        tell: Callable[[str], None],
        letter_seconds: float = SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chosen = chosen
        self._every, self._most_seconds = every, most_seconds
        self._tell, self._now = tell, now
        self._kept = KeptConnection(address, lambda error: tell(str(error)))
        self._letters = DeadLetters(seconds=letter_seconds, now=now)
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._until = float("-inf")
        self._said: set[str] = set()
        self._rights: dict[str, None] = {}

    def last(self) -> Look | None:
        """A look that is `every` seconds old at most; None where the server does not answer."""
        with self._lock:
            if self._now() >= self._until:
                answered = self._kept.answers
                self._last = None
                if self._kept.use(self._look) and not answered:
                    self._tell(f"{self._kept.address} answers again")
                self._until = self._now() + self._every
            return self._last

    @property
    def failure(self) -> RStreamError | None:
        """Why the last look found nothing."""
        return self._kept.failure

    @property
    def rights(self) -> Sequence[str]:
        """What the user lacks, as ACL SETUSER writes it."""
        return tuple(self._rights)

    def close(self, wait: float = 1.0) -> None:
        """Close the connection, if no look is under way."""
        if self._lock.acquire(timeout=wait):
            try:
                self._kept.close()
            finally:
                self._lock.release()

    def _look(self, server: Server) -> None:
        self._rights.clear()
        names = self.chosen.of(server)
        self._last = look(server, names, self._letters, self._is_refused, self._most_seconds, self._now)
        missing = sorted(self.chosen.named - {one.stream for one in self._last.streams})
        for name in missing[:_NAMED]:
            self._say(f"there is no stream {name!r} at {server.address} yet")
        if self.chosen.left_out:
            self._say(f"{self.chosen.left_out:,} more streams at {server.address} are left out: --max-streams")

    def _is_refused(self, error: RStreamError) -> None:
        if not isinstance(error, NotPermittedError):
            self._say(str(error))
            return
        if len(self._rights) < _NAMED:
            self._rights[error.right] = None
        self._say(str(error), error.right)

    def _say(self, line: str, about: str = "") -> None:
        """Once, about each thing."""
        about = about or line
        if about not in self._said and len(self._said) < 10 * _NAMED:
            self._said.add(about)
            self._tell(line)
