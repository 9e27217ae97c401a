"""The event loop: one thread, one selector, no blocking call.

Per turn: serve ready sockets, end waits whose deadline has passed, write changes, send remaining output. Once a second
run the periodic tasks. While no client sends a request, collect garbage and pack cold data.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import time
from collections.abc import Callable

from spark_streams.engine.core import Engine
from spark_streams.engine.server.acceptor import Acceptor
from spark_streams.engine.server.client_connections import ClientConnection, Connections
from spark_streams.engine.server.listeners import Listener
from spark_streams.engine.store.node_limits import Shelf

SOCKET_CHECK = 60.0  # seconds between two looks for the own Unix socket
_IDLE_BEFORE_TIDYING = 0.9  # seconds without a request after which garbage is collected and cold data packed

log = logging.getLogger("rstream.engine")


class Tidying:
    """Work for idle times: collect garbage once, then pack cold data in small steps."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._last_busy = time.monotonic()
        self._swept = False
        self.unfinished = False  # there is more to pack

    def put_off(self, moment: float) -> None:
        """Restart the idle time after a request."""
        self._swept = False
        self._last_busy = moment
        self.unfinished = self._shelf.is_full

    def tidy(self, moment: float) -> None:
        """Do a step of work: one small node between requests, more if the engine has been idle for long enough."""
        if moment - self._last_busy < _IDLE_BEFORE_TIDYING:
            if self._shelf.is_full:
                self._shelf.pack_one()
            self.unfinished = self._shelf.is_full
            return
        if not self._swept:
            self._swept = True
            collect_all_objects()
        self._shelf.pack(0.005)
        self.unfinished = bool(self._shelf)


class EngineServer:
    """Listens, serves, stops. It ends after `idle` seconds without a client (None: never). It looks for its Unix socket
    each `socket_check` seconds, and ends if no client can come in any more."""

    def __init__(
        self,
        engine: Engine,
        idle: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        socket_check: float = SOCKET_CHECK,
    ) -> None:
        self.engine = engine
        self._idle = idle
        self._socket_check = socket_check
        self._should_stop = should_stop  # asked once a second
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(engine, self._selector)
        self._acceptor = Acceptor(engine, self._selector, self._connections)
        self._tidying = Tidying(engine.node_limits.shelf)
        self._pipe = (-1, -1)
        engine.wake = self._wake
        engine.serve_meanwhile = self._serve_meanwhile

    def listen(self) -> list[str]:
        """Listen on the configured addresses and return them. Raises OSError with the address as its file name."""
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
        """Run `prepare`, which may serve clients (engine.serve_meanwhile), then serve until stopped or idle."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[0], False)
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        engine, connections = self.engine, self._connections
        engine.tick()
        try:
            prepare()
            last_used = checked = looked = time.monotonic()
            while not engine.stopping:
                events = self._turn(self._patience())
                # The wall clock may jump; the idle time must not.
                moment = time.monotonic()
                if events:
                    self._tidying.put_off(moment)
                else:
                    self._tidying.tidy(moment)
                if connections.by_id:
                    last_used = moment
                elif self._idle is not None and moment - last_used >= self._idle:
                    log.info("no client for %g s: stopping", self._idle)
                    break
                if moment - looked >= self._socket_check:
                    looked = moment
                    if (removed := self._acceptor.removed_socket()) is not None:
                        log.warning("the socket %s was removed, so no client can come in any more: stopping", removed)
                        break
                if moment - checked >= 1:
                    checked = moment
                    if self._should_stop():
                        break
                    self._run_periodic_tasks(moment)
                elif engine.persistence.busy:
                    engine.persistence.cron()
        finally:
            self._close()

    def _turn(self, patience: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve clients that send a request within `patience` seconds; return the events."""
        events = self._selector.select(patience)
        self.engine.tick()
        self._connections.begin_turn(len(events))
        self._handle(events)
        self._serve_waiting()
        self._connections.commit()
        return events

    def _serve_meanwhile(self) -> None:
        self._turn(0)

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Serve the ready sockets."""
        for key, mask in events:
            if isinstance(key.data, ClientConnection):
                key.data.handle(mask)
            elif isinstance(key.data, Listener):
                self._acceptor.accept(key.data)
            else:
                self._drain_pipe()
        if self._connections.joint.waiting:
            self._connections.joint.run()

    def _serve_waiting(self) -> None:
        """End waits whose deadline has passed, and run unfinished work of earlier turns."""
        engine, connections = self.engine, self._connections
        engine.waiters.expire(engine.now)
        if connections.unfinished:
            connections.run_unfinished()
        if connections.resumable:
            connections.resume()

    def _run_periodic_tasks(self, moment: float) -> None:
        """Once a second: silent connections, expired keys, the append-only file."""
        self._connections.close_idle_and_slow(moment)
        self.engine.memory.measure_clients()
        for db in self.engine.databases:
            if db.expires and self.engine.active_expire:
                db.drop_expired()
                self.engine.serve_ready()
        self._connections.commit()
        self.engine.persistence.cron()

    def _patience(self) -> float:
        """Return the seconds until the next turn if no socket becomes ready before."""
        if self._tidying.unfinished or self._connections.unfinished:
            return 0
        wait = 1.0 if self._idle is None else min(1.0, self._idle / 4)
        deadline = self.engine.waiters.next_deadline()
        if deadline is not None:
            # Rounded up: waking before the deadline would spin.
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


# -- settings of Python's garbage collector that keep its pauses short -------------------------------------------------

# Nearly all objects of commands and connections are freed by reference counts; a deleted group leaves one cycle for
# each consumer. So an object that survives one collection is frozen: later collections skip it until the engine is
# idle. A collection then takes a fraction of a millisecond, independent of the size of the streams.

_YOUNG = 1_000  # new containers between two collections
_NEVER = 1_000_000_000


def collect_new_objects() -> None:
    """Collect only new objects from now on. The first idle second collects what the start has left."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)
    gc.callbacks.append(skip_survivors)


def collect_all_objects() -> None:
    """Collect all objects; called when no client is active."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def skip_survivors(phase: str, _info: dict[str, int]) -> None:
    """After a collection: what is left is not looked at by the next one."""
    if phase == "stop":
        gc.freeze()
