"""Connections of browsers: how many there are, and how long a request or a page may take.

uvicorn's own settings bound neither connections that send nothing nor unfinished requests. A request has some seconds
from its first byte to its last. If there are too many connections, the oldest one of those that still wait for a
request is closed, so programs that only connect shut out nobody.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_streams.operations.console.bounds import CONNECTIONS, REQUEST_SECONDS, RESPONSE_SECONDS

_UNFINISHED = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request has not arrived


class Connection(H11Protocol):
    """A connection."""

    _begun = 0.0
    _request_end: asyncio.TimerHandle | None = None
    _response_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begun = self.loop.time()
        if not self._has_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._request_end = _cancel(self._request_end)
        self._response_end = _cancel(self._response_end)
        if self.transport is not None:  # there was room for it
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._response_end = self.loop.call_later(RESPONSE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._response_end = _cancel(self._response_end)

    @property
    def is_unfinished(self) -> bool:
        """Whether the request, or the next one, has not arrived."""
        return self.conn.their_state in _UNFINISHED

    def _has_room(self) -> bool:
        """Whether there may be one more connection. An unfinished one is closed for it."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        if len(others) < CONNECTIONS:
            return True
        unfinished = [other for other in others if other.is_unfinished]
        if unfinished:
            oldest = min(unfinished, key=lambda other: other._begun)
            self.connections.discard(oldest)
            oldest.transport.abort()
        return bool(unfinished)

    def _watch_request(self) -> None:
        """Close the connection if its request does not arrive in time. Bytes that arrive one by one are no excuse."""
        if not self.is_unfinished:
            self._request_end = _cancel(self._request_end)
        elif self._request_end is None:
            self._request_end = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel the timer, and return None for its place."""
    if timer is not None:
        timer.cancel()
    return None
