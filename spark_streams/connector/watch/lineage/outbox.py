"""Sends events to a collector or a file, in their order, on a thread of its own: a query never waits for it.

While the collector does not answer, events wait, and the thread tries again. If too many wait, new ones are dropped.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from spark_streams.base.extras import lacks
from spark_streams.base.printable import printable
from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.wire.address import http_url
from spark_streams.connector.wire.address.identity import password_in

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

KEY_FILE = "RSTREAM_LINEAGE_KEY_FILE"
MOST = 1000  # tasks that wait
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between two attempts
_AT_LAST = 5.0  # seconds for what waits when the watch is closed
_REQUEST = 5.0  # seconds for a request
_log = logging.getLogger("spark_streams.operations.monitor")


class Outbox:
    """Queue of tasks that return events. to: for messages; send: raises an error if an event cannot be sent; dropped:
    number of events that were not sent."""

    def __init__(self, to: str, send: Callable[[RunEvent], object]) -> None:
        self._to, self._send = printable(to), send
        self._tasks: queue.Queue[Callable[[], list[RunEvent]]] = queue.Queue(MOST)
        self._closing, self._closed = threading.Event(), threading.Event()
        self._fails = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="rstream-lineage", daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], list[RunEvent]]) -> None:
        """Add a task. It is dropped if too many wait."""
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Send what waits, for a few seconds at most. An event that cannot be sent at once is dropped."""
        self._closing.set()
        if not self._tasks.full():
            self._tasks.put_nowait(list)  # no events: wakes the thread
        self._thread.join(_AT_LAST)
        self._closed.set()
        self.dropped += sum(task is not list for task in [*self._tasks.queue])
        if self.dropped:
            _log.warning("lineage: %d events for %s were dropped", self.dropped, self._to)

    def _work(self) -> None:
        while not (self._closing.is_set() and self._tasks.empty()):
            for event in self._tasks.get()():
                self._deliver(event)

    def _deliver(self, event: RunEvent) -> None:
        wait = _FIRST_WAIT
        while not self._closed.is_set():
            try:
                self._send(event)
            except Exception as error:  # noqa: BLE001 - of any library that a transport uses
                if not self._fails:
                    _log.warning("lineage: %s takes no events: %s", self._to, printable(str(error)))
                self._fails = True
                if _is_refused(error) or self._closing.wait(wait):
                    break
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                if self._fails:
                    _log.warning("lineage: %s takes events again; %d were dropped", self._to, self.dropped)
                self._fails = False
                return
        self.dropped += 1


def _is_refused(error: Exception) -> bool:
    """Whether the collector refuses this event, also if it is sent again. A login and a limit may change."""
    code = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= code < 500 and code not in (401, 403, 408, 429)


def sender(to: str) -> Callable[[RunEvent], object]:
    """Return a function that sends an event to the URL of a collector, or appends it to a file.

    Raises UnsupportedError without openlineage-python, InvalidOptionError if `to` cannot be used.
    """
    try:
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import HttpConfig, HttpTransport, TokenProvider
    except ModuleNotFoundError:
        raise UnsupportedError(lacks("lineage", "openlineage-python")) from None

    class KeyFile(TokenProvider):
        """Reads the key for each request: it may be replaced."""

        def get_bearer(self) -> str | None:
            file = os.environ.get(KEY_FILE)
            return f"Bearer {password_in(file)}" if file else None

    if http_url.is_root(to):
        # The outbox tries again. The library would log each attempt.
        config = HttpConfig(f"{to.rstrip('/')}/", timeout=_REQUEST, auth=KeyFile({}), retry={"total": 0})
        return HttpTransport(config).emit
    if "://" in to and not to.startswith("file://"):
        raise InvalidOptionError(
            "lineage must be a file, or http://host:port or https://host:port of a collector, without a login and a "
            f"query: write the collector's key into a file, and set {KEY_FILE} to its path"
        )
    path = unquote(urlsplit(to).path) if to.startswith("file:") else to
    try:
        Path(path).open("a", encoding="utf-8").close()
    except OSError as error:
        raise InvalidOptionError(f"lineage cannot be written to {path}: {error.strerror}") from None
    return FileTransport(FileConfig(path, append=True)).emit
