"""How the groups that somebody watches stand, from any thread; a server that does not answer is no reason to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from spark_streams.deadletter.retry.waiting_entries import WaitingEntries, waiting_of
from spark_streams.model.keys import is_returned
from spark_streams.monitor.kept_connection import KeptConnection
from spark_streams.monitor.lag_survey import GroupStanding, survey
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server

_FRESH = 1.0  # seconds that an answer serves several askers
_log = logging.getLogger("spark_streams.monitor")

Key = tuple[str, str]  # stream, group


class Standings:
    """One connection to the server, made again when it breaks. now: a monotonic clock, in seconds."""

    def __init__(self, address: Address, now: Callable[[], float] = time.monotonic) -> None:
        self._kept = KeptConnection(
            address, lambda error: _log.warning("the monitor cannot see the streams: %s", error)
        )
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[Key, GroupStanding] = {}
        self._looked: dict[str, float] = {}  # streams, and when

    @property
    def answers(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._kept.answers

    def of(self, keys: Iterable[Key]) -> dict[Key, GroupStanding]:
        """These groups as they stand now, or stood a second ago at most. Without those that are not there; none at all
        where the server does not answer."""
        wanted = set(keys)
        with self._lock:
            since = self._now() - _FRESH
            stale = sorted({stream for stream, _ in wanted if self._looked.get(stream, since - 1) < since})
            if stale and not self._look(stale):
                return {}
            return {key: self._known[key] for key in wanted if key in self._known}

    def waiting(self, keys: Iterable[Key]) -> list[WaitingEntries]:
        """What waits for another try now, of these groups' streams. Nothing where the server does not answer."""
        asked, found = sorted({key for key in keys if not is_returned(key[0])}), list[WaitingEntries]()

        def look(server: Server) -> None:
            found.extend(waiting_of(server, asked))

        with self._lock:
            return found if asked and self._kept.use(look) else []

    def forget(self) -> None:
        """Ask again next time, however soon that is."""
        with self._lock:
            self._looked.clear()

    def tell(self, act: Callable[[Server], None]) -> bool:
        """Do something on the connection; whether the server took it."""
        with self._lock:
            return self._kept.use(act)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._kept.close()

    def _look(self, streams: list[str]) -> bool:
        def look(server: Server) -> None:
            seen = survey(server, streams)
            now = self._now()
            for key in [key for key in self._known if key[0] in set(streams)]:
                del self._known[key]
            self._known.update({(group.stream, group.group): group for group in seen.groups})
            self._looked.update(dict.fromkeys(streams, now))

        return self._kept.use(look)
