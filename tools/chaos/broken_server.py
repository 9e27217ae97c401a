"""The server is down for a while, under a query that reads and a producer that writes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.job import error_of
from tools.chaos.moments import STAGES as MOMENTS
from tools.chaos.moments import Moment, run_to_moment
from tools.chaos.producer import Producer
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import DurableServer, durable_server

BEGINNING = "beginning"  # start of a query that has a checkpoint
STAGES = (*MOMENTS, BEGINNING)


def killed(scene: Scene) -> Outcome:
    """SIGKILL the server, and start it with its files: the query continues without a restart."""

    def strike(server: DurableServer) -> None:
        server.kill()
        time.sleep(scene.random.random())
        server.start()

    return _while_reading(scene, strike)


def paused(scene: Scene) -> Outcome:
    """SIGSTOP the server for some seconds, longer than the producer waits for replies."""

    def strike(server: DurableServer) -> None:
        server.signal(signal.SIGSTOP)
        time.sleep(1 + 4 * scene.random.random())
        server.signal(signal.SIGCONT)

    return _while_reading(scene, strike)


def restarted(scene: Scene, moment: Moment | None = None, seconds: float | None = None) -> Outcome:
    """SIGKILL the server of the source, of the sink, or of both at one of STAGES, and start it some seconds later.

    The query waits and continues, and no task ends it.
    """
    moment = moment or Moment.by_chance(scene, *STAGES)
    seconds = seconds or scene.random.choice([2, 2, 7])  # a first connection waits for 5 s
    role = scene.random.choice(["both", "source", "sink"]) if scene.sink == "stream" else "source"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(durable_server(scene.kind, scene.folder / f"{scene.name}-kept"))
        out_url = {"both": "", "source": scene.url, "sink": server.url}[role]
        struck_scene = stack.enter_context(scene.on_server(scene.url if role == "sink" else server.url, out_url))
        query = struck_scene.query(None if moment.stage == BEGINNING else moment.fault, maxEntriesPerTrigger="40")
        struck_scene.producer.add(struck_scene.name, scene.random.randint(100, 120))
        running = _run_through(struck_scene, query, moment, server, seconds)
        struck_scene.wait_for(lambda: struck_scene.is_settled(query) or not running.isActive, "all to be settled")
        error = error_of(running)
        if not error:
            running.processAllAvailable()
            running.stop()
        else:
            struck_scene.drain(query)
        outcome = struck_scene.outcome(query)
        outcome.expect("error", error, "")
        outcome.choices = f"{moment}, {role} down for {seconds} s"
    return outcome


def _run_through(scene: Scene, query: Query, moment: Moment, server: DurableServer, seconds: float) -> StreamingQuery:
    """Run the query until the server runs again. Return the running query."""
    if moment.stage == BEGINNING:
        scene.drain(query)
        scene.producer.add(scene.name, 40)
        with _server_down(server, seconds):
            return scene.start(query)
    with contextlib.ExitStack() as outage:
        return run_to_moment(scene, query, moment, lambda: outage.enter_context(_server_down(server, seconds)))


@contextlib.contextmanager
def _server_down(server: DurableServer, seconds: float) -> Iterator[None]:
    """Kill the server, and start it this number of seconds after the end of the block."""
    server.kill()
    try:
        yield
        time.sleep(seconds)
    finally:
        server.start()


def _is_past(query: Query, batch: int) -> bool:
    return query.committed() > batch


def _while_reading(scene: Scene, strike: Callable[[DurableServer], None]) -> Outcome:
    """Run the scene on a new server that is struck three times."""
    server_context = durable_server(scene.kind, scene.folder / f"{scene.name}-kept")
    with server_context as server, scene.on_server(server.url) as struck_scene:
        return struck_scene.outcome(run_with_faults(struck_scene, [struck_scene.name], lambda: strike(server)))


def run_with_faults(scene: Scene, streams: Sequence[str], strike: Callable[[], None]) -> Query:
    """Run a query over these streams while a producer writes to them, and call `strike` three times.

    Raises AssertionError if the query ends.
    """
    hasty = Producer(scene.url, "hasty", patience=0.5)
    query = scene.query(streams=",".join(streams), maxEntriesPerTrigger=str(scene.random.randint(20, 80)))
    for stream in streams:
        scene.producer.add(stream, 100 // len(streams))
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= 0, "the first batch", running)
    stopped = threading.Event()

    def produce() -> None:
        for stream in cycle(streams):
            if stopped.is_set():
                break
            hasty.add(stream, 1)
            time.sleep(0.01)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(3):
            before = query.committed()
            strike()
            scene.wait_for(partial(_is_past, query, before), "a batch after the fault", running)
    finally:
        stopped.set()
        producing.join()
    for stream in streams:
        scene.wait_for(partial(scene.is_settled, query, stream), f"all of {stream} to be settled", running)
    running.processAllAvailable()
    running.stop()
    scene.producer.added += hasty.added
    return query
