"""Connections of browsers: how many there are, and how long a request or a page may take.

uvicorn's own settings bound neither connections that send nothing nor unfinished requests. A request has some seconds
from its first byte to its last, with the TLS handshake before it. If there are too many connections, the oldest one of
those that still wait for a request is closed, so strangers who only connect shut out nobody.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import ssl
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.bounds import CONNECTIONS, REQUEST_SECONDS, RESPONSE_SECONDS

_COLLECTED = 50  # ended connections
_ended = itertools.count(1)
_UNFINISHED = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request has not arrived


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the settings of Python for servers, with TLS 1.2 or newer. Raises ConfigError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"the certificate or its key cannot be used: {error}") from error
    return context


class Connection(H11Protocol):
    """A connection. tls: None for plain HTTP."""

    tls: ClassVar[ssl.SSLContext | None] = None

    _socket: asyncio.Transport
    _early: bytearray
    _begun = 0.0
    _request_end: asyncio.TimerHandle | None = None
    _response_end: asyncio.TimerHandle | None = None
    _handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        self._begun = self.loop.time()
        self._early = bytearray()
        if not self._has_room():
            transport.abort()
            return
        self.connections.add(self)
        self._watch_request()
        if self.tls is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._secure(transport, self.tls))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=REQUEST_SECONDS
            )
        except OSError:
            secured = None
        if secured is None:
            transport.abort()
            self._forget()
        else:
            super().connection_made(secured)
            if self._early:
                self.data_received(bytes(self._early))

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # Python 3.11 gives the first bytes to the protocol before start_tls returns
            self._early += data
            return
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._response_end = self.loop.call_later(RESPONSE_SECONDS, self._socket.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._response_end = _cancel(self._response_end)

    def shutdown(self) -> None:
        if self.transport is None:
            self._socket.abort()
        else:
            super().shutdown()

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
            oldest._socket.abort()
        return bool(unfinished)

    def _watch_request(self) -> None:
        """Close the connection if its request does not arrive in time. Bytes that arrive one by one are no excuse."""
        if not self.is_unfinished:
            self._request_end = _cancel(self._request_end)
        elif self._request_end is None:
            self._request_end = self.loop.call_later(REQUEST_SECONDS, self._socket.abort)

    def _forget(self) -> None:
        self.connections.discard(self)
        self._request_end = _cancel(self._request_end)
        self._response_end = _cancel(self._response_end)
        if self.tls is not None:
            _collect_buffers()


def _collect_buffers() -> None:
    """Free what ended TLS connections leave: objects in cycles, each set with a buffer of 256 kB, of whose size the
    garbage collector does not know."""
    if next(_ended) % _COLLECTED == 0:
        gc.collect()


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel the timer, and return None for its place."""
    if timer is not None:
        timer.cancel()
    return None
