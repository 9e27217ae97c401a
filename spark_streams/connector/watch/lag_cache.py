"""Lags of the watched groups, for any thread. If the server does not answer, there are none, but no error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from spark_streams.base.printable import name_text
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries, waiting_of
from spark_streams.connector.keys import is_returned
from spark_streams.connector.lag.kept_connection import KeptConnection
from spark_streams.connector.lag.margin import Margin
from spark_streams.connector.lag.node_memory import node_memories
from spark_streams.connector.lag.survey import GroupLag, survey
from spark_streams.connector.lag.window import MarginWindow
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server

_FRESH = 1.0  # seconds for which a lag is used again
_log = logging.getLogger("spark_streams.operations.monitor")

Key = tuple[str, str]  # stream, group


class LagCache:
    """Lags by stream and group, over one connection that is opened again after it broke. now: a monotonic clock, in
    seconds."""

    def __init__(self, address: Address, now: Callable[[], float] = time.monotonic) -> None:
        self._connection = KeptConnection(
            address, lambda error: _log.warning("the monitor cannot read the streams: %s", error)
        )
        self._now = now
        self._lock = threading.Lock()
        self._lags: dict[Key, GroupLag] = {}
        self._margins = MarginWindow()
        self._read_at: dict[str, float] = {}  # time of the last read, by stream

    @property
    def answers(self) -> bool:
        """Whether the server answered the last request."""
        return self._connection.answers

    def fetch(self, keys: Iterable[Key]) -> dict[Key, GroupLag]:
        """Return the lags of these groups, a second old at most. Missing groups are left out; if the server does not
        answer, all are."""
        group_keys = set(keys)
        with self._lock:
            since = self._now() - _FRESH
            stale = sorted({stream for stream, _ in group_keys if self._read_at.get(stream, since - 1) < since})
            if stale and not self._refresh(stale):
                return {}
            as_shown = {key: (name_text(key[0]), name_text(key[1])) for key in group_keys}
            return {key: self._lags[shown] for key, shown in as_shown.items() if shown in self._lags}

    def margins(self, keys: Iterable[Key]) -> dict[Key, Margin]:
        """Return the margins of these groups by what was read so far. Groups that were never read are left out."""
        as_shown = {(name_text(stream), name_text(group)): (stream, group) for stream, group in keys}
        with self._lock:
            return {as_shown[shown]: margin for shown, margin in sorted(self._margins.margins(as_shown).items())}

    def waiting(self, keys: Iterable[Key]) -> list[WaitingEntries]:
        """Return the entries of these groups that wait for a retry; none if the server does not answer."""
        group_keys, waiting = sorted({key for key in keys if not is_returned(key[0])}), list[WaitingEntries]()

        def fetch_waiting(server: Server) -> None:
            waiting.extend(waiting_of(server, group_keys))

        with self._lock:
            return waiting if group_keys and self._connection.use(fetch_waiting) else []

    def forget(self) -> None:
        """Make the next call read from the server."""
        with self._lock:
            self._read_at.clear()

    def use(self, act: Callable[[Server], None]) -> bool:
        """Call `act` with the connection, and return whether the server answered."""
        with self._lock:
            return self._connection.use(act)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    def _refresh(self, streams: list[str]) -> bool:
        def fetch_lags(server: Server) -> None:
            snapshot = survey(server, streams)
            self._margins.add(snapshot)
            self._margins.add_memory(node_memories(server, refused=lambda _: None), snapshot.at_ms)
            now = self._now()
            refreshed = {*map(name_text, streams)}
            for key in [key for key in self._lags if key[0] in refreshed]:
                del self._lags[key]
            self._lags.update({(group.stream, group.group): group for group in snapshot.groups})
            self._read_at.update(dict.fromkeys(streams, now))

        return self._connection.use(fetch_lags)
