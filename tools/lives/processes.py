"""The processes of a life. One works at a time; before each of its requests another one may work, or it is killed."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.shards import names
from spark_streams.connector.source.query import batch_stream
from spark_streams.connector.source.query.triggering import BackgroundWorker
from spark_streams.connector.spark import worker
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.connection import Connection, Server
from spark_streams.connector.wire.lease import Lease, LeaseTerms, Processes
from spark_streams.operations.commands import add
from spark_streams.operations.doctor import stream_findings
from tools.lives.older import as_versions
from tools.simulation.actor import Actor, Killed
from tools.simulation.in_process.patches import on_core
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.threads import TaskPlace


@dataclass(eq=False)
class Process:
    """A process of a life. An interruption is (requests before it, what happens then); it may raise Killed."""

    pid: int
    lives: bool = True
    requests: int = 0  # that it has sent
    interruptions: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)


class Place:
    """The processes: `working` is the innermost one that works in this thread."""

    def __init__(self, server: ProcessServer) -> None:
        self.server = server
        self._working = defaultdict[Actor | None, list[Process]](list)
        self._pids = 0
        self.alive = set[int]()

    def new(self) -> Process:
        """Start a process."""
        self._pids += 1
        self.alive.add(self._pids)
        return Process(self._pids)

    def end(self, process: Process) -> None:
        """SIGKILL: its connections close."""
        process.lives = False
        self.alive.discard(process.pid)
        for connection in process.connections:
            connection.close()

    @property
    def working(self) -> Process | None:
        """The process that works now; None: nobody."""
        here = self._working[Actor.current()]
        return here[-1] if here else None

    @contextlib.contextmanager
    def at_work(self, process: Process) -> Iterator[None]:
        """Let this process work. If it is killed, it ends, and Killed is raised."""
        here = self._working[Actor.current()]
        here.append(process)
        try:
            yield
        except Killed:
            self.end(process)
            raise
        finally:
            here.pop()

    def before_a_request(self, connection: Connection) -> None:
        """Let happen what is due before this request of the process that works. One of two at once may pause here."""
        process, actor = self.working, Actor.current()
        assert process is not None, "a request of no process"
        if not process.lives:
            raise ServerUnreachableError("this process was killed")
        if actor is not None and len(self._working[actor]) == 1:
            actor.tick()
        if not process.lives:
            raise Killed
        process.requests += 1
        due = [act for at, act in process.interruptions if at == process.requests]
        for act in due:
            act()

    def sleep(self, seconds: float) -> None:
        """A pause of the product: time passes at once."""
        self.server.core.clock.sleep(seconds)


def _pid(_: Processes) -> int:
    working = _place["now"].working
    return 0 if working is None else working.pid


def _born(_: Processes, pid: int) -> str:
    return "1" if pid in _place["now"].alive else ""


_place: dict[str, Place] = {}  # of the running life, under "now"


def _sleep(seconds: float) -> None:
    _place["now"].sleep(seconds)


PATIENCE = Patience(sleep=_sleep)
TERMS = LeaseTerms(sleep=_sleep, is_kept=False)


_NO_THREAD = threading.Thread()


class AtOnce(BackgroundWorker):
    """Runs each job of the background when it is submitted, in the process that submits it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._thread = _NO_THREAD

    def __reduce__(self) -> tuple[type[BackgroundWorker], tuple[Address]]:
        return AtOnce, (self._address,)

    def submit(self, job: Callable[[Server], object]) -> Future[object]:
        """Run the job."""
        result = super().submit(job)
        self._jobs.put(None)
        self._work()
        return result

    def close(self) -> None:
        """There is no thread."""


@contextlib.contextmanager
def product(server: ProcessServer) -> Iterator[None]:
    """Patch the product for any number of lives on this server."""
    log = logging.getLogger("spark_streams")
    with on_core(server.core), as_versions(), pytest.MonkeyPatch.context() as patch:
        init, send = Connection.__init__, Connection.send

        def begin(self: Connection, address: Address, node_address: Address | None = None) -> None:
            process = _place["now"].working
            assert process is not None, "a connection of no process"
            if not process.lives:
                raise ServerUnreachableError("this process was killed")
            init(self, address, node_address)
            process.connections.append(self)

        def ask(self: Connection, data: bytes | memoryview) -> None:
            _place["now"].before_a_request(self)
            send(self, data)

        patch.setattr(Connection, "__init__", begin)
        patch.setattr(Connection, "send", ask)
        patch.setattr(batch_stream, "BackgroundWorker", AtOnce)
        patch.setattr(Processes, "pid", property(_pid))
        patch.setattr(Processes, "space", "lives")
        patch.setattr(Processes, "born", _born)
        patch.setattr(Lease, "_start", lambda _: None)  # a life renews the sessions of who lives
        patch.setattr(worker, "TaskContext", TaskPlace)
        patch.setattr(signal, "signal", lambda *_: signal.SIG_DFL)  # two commands at once are two threads
        patch.setattr(stream_findings, "ENTRIES", 3)
        patch.setattr(add, "_CHUNK", 3)
        patch.setattr(names, "_endings", lambda: ())  # no stream is in shards: 32,896 names need not be looked for
        handlers, log.handlers, propagates, log.propagate = log.handlers, [logging.NullHandler()], log.propagate, False
        try:
            yield
        finally:
            log.handlers, log.propagate = handlers, propagates


@contextlib.contextmanager
def on(place: Place) -> Iterator[None]:
    """Run the product in this place."""
    _place["now"] = place
    try:
        with place.server.core.clock.in_charge():
            yield
    finally:
        del _place["now"]
