"""The event loop: one thread, one selector, nothing that blocks.

Per turn: serve the sockets that are ready, end the waiting of those whose time has come, keep what has changed, send
what is left to be sent; once a second see to what is due. While nobody asks for anything, tidy up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import time
from collections.abc import Callable

from spark_streams.engine import garbage
from spark_streams.engine.core import Engine
from spark_streams.engine.server.acceptor import Acceptor
from spark_streams.engine.server.connection import Connection
from spark_streams.engine.server.connections import Connections
from spark_streams.engine.server.listeners import Listener
from spark_streams.engine.store.cold_nodes import Shelf

_IDLE_BEFORE_TIDYING = 0.9  # seconds without a request after which garbage is collected and cold data packed

log = logging.getLogger("rstream.engine")


class _Tidying:
    """What is done while nobody asks for anything: garbage is collected once, then cold data packed, bit by bit."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._last_busy = time.monotonic()
        self._swept = False
        self.unfinished = False  # there is more to pack

    def put_off(self, moment: float) -> None:
        """Somebody has asked for something."""
        self._swept = self.unfinished = False
        self._last_busy = moment

    def go_on(self, moment: float) -> None:
        """Nobody has: tidy up for a moment, where that has lasted long enough."""
        if moment - self._last_busy < _IDLE_BEFORE_TIDYING:
            return
        if not self._swept:
            self._swept = True
            garbage.sweep()
        self._shelf.pack(0.005)
        self.unfinished = bool(self._shelf)


class Server:
    """Listens, serves, stops. `idle` seconds without any client end it (None: never)."""

    def __init__(self, engine: Engine, idle: float | None = None, until: Callable[[], bool] = lambda: False) -> None:
        self.engine = engine
        self._idle = idle
        self._until = until  # asked once a second: has the reason to live gone?
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(engine, self._selector)
        self._acceptor = Acceptor(engine, self._selector, self._connections)
        self._tidying = _Tidying(engine.node_limits.shelf)
        self._pipe = (-1, -1)
        engine.wake = self._wake
        engine.breathe = self._breathe

    def listen(self) -> list[str]:
        """Listen where the settings say; the addresses. Raises OSError with the address as its file name."""
        return self._acceptor.listen()

    def stop_soon(self) -> None:
        """End the loop; safe in a signal handler."""
        self.engine.stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._pipe[1] >= 0:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], b"x")

    def serve(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Run `prepare`, in which clients may be served (engine.breathe), then serve until stopped or idle."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[0], False)
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        engine, connections = self.engine, self._connections
        engine.tick()
        try:
            prepare()
            last_used = checked = time.monotonic()
            while not engine.stopping:
                events = self._turn(self._patience())
                # The wall clock may jump; how long nobody was there must not.
                moment = time.monotonic()
                if events:
                    self._tidying.put_off(moment)
                else:
                    self._tidying.go_on(moment)
                if connections.by_id:
                    last_used = moment
                elif self._idle is not None and moment - last_used >= self._idle:
                    log.info("no client for %g s: stopping", self._idle)
                    break
                if moment - checked >= 1:
                    checked = moment
                    if self._until():
                        break
                    self._see_to_what_is_due(moment)
                elif engine.persistence.busy:
                    engine.persistence.cron()
        finally:
            self._close()

    def _turn(self, patience: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve whoever asks within so many seconds; who that was."""
        events = self._selector.select(patience)
        self.engine.tick()
        self._connections.begin_turn()
        self._handle(events)
        self._go_on()
        self._connections.commit()
        return events

    def _breathe(self) -> None:
        self._turn(0)

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Serve the sockets that are ready."""
        for key, mask in events:
            if isinstance(key.data, Connection):
                key.data.handle(mask)
            elif isinstance(key.data, Listener):
                self._acceptor.accept(key.data)
            else:
                self._drain_pipe()

    def _go_on(self) -> None:
        """End the waiting of those whose time has come, and go on with what is left from before."""
        engine, connections = self.engine, self._connections
        engine.waiters.expire(engine.now)
        if connections.unfinished:
            connections.go_on()
        if connections.resumable:
            connections.resume()

    def _see_to_what_is_due(self, moment: float) -> None:
        """Once a second: connections that are silent for too long, keys whose time has come, the append-only file."""
        self._connections.look_over(moment)
        for db in self.engine.databases:
            if db.expires and self.engine.active_expire:
                db.drop_expired()
                self.engine.serve_ready()
        self._connections.commit()
        self.engine.persistence.cron()

    def _patience(self) -> float:
        """How many seconds may pass until the next turn, where no socket is ready before."""
        if self._tidying.unfinished or self._connections.unfinished:
            return 0
        wait = 1.0 if self._idle is None else min(1.0, self._idle / 4)
        deadline = self.engine.waiters.next_deadline()
        if deadline is not None:
            # Rounded up: waking before the time would spin.
            wait = min(wait, max(deadline - self.engine.clock() + 1, 0) / 1000)
        return wait

    def _drain_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 100)

    def _close(self) -> None:
        self._acceptor.close()
        self._connections.close()
        self._acceptor.clean_up()
        self._selector.close()
        for fileno in self._pipe:
            if fileno >= 0:
                os.close(fileno)
