"""The server itself goes away for a while, under a query that reads and a producer that writes."""

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
from tools.chaos.moments import Moment, meet
from tools.chaos.producer import Producer
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene
from tools.chaos.servers import KeptServer, kept_server

BEGINNING = "beginning"  # of a query that has a checkpoint
STAGES = (*MOMENTS, BEGINNING)


def killed(scene: Scene) -> Outcome:
    """SIGKILL of the server, and a start with what it had kept: the query goes on by itself."""

    def strike(server: KeptServer) -> None:
        server.kill()
        time.sleep(scene.random.random())
        server.start()

    return _while_reading(scene, strike)


def paused(scene: Scene) -> Outcome:
    """SIGSTOP of the server for some seconds; the producer gives up on replies before that."""

    def strike(server: KeptServer) -> None:
        server.signal(signal.SIGSTOP)
        time.sleep(1 + 4 * scene.random.random())
        server.signal(signal.SIGCONT)

    return _while_reading(scene, strike)


def restarted(scene: Scene, moment: Moment | None = None, seconds: float | None = None) -> Outcome:
    """SIGKILL at one of STAGES, and a start some seconds later: the query waits and goes on, and no task is the reason
    for its end. It is the server that is read from, the one that is written to, or both in one."""
    moment = moment or Moment.by_chance(scene, *STAGES)
    seconds = seconds or scene.random.choice([2, 2, 7])  # a first connection is waited for five
    which = scene.random.choice(["both", "source", "sink"]) if scene.sink == "stream" else "source"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(kept_server(scene.kind, scene.folder / f"{scene.name}-kept"))
        out_url = {"both": "", "source": scene.url, "sink": server.url}[which]
        there = stack.enter_context(scene.elsewhere(scene.url if which == "sink" else server.url, out_url))
        query = there.query(None if moment.stage == BEGINNING else moment.fault, maxEntriesPerTrigger="40")
        there.producer.add(there.name, scene.random.randint(100, 120))
        running = _run_through(there, query, moment, server, seconds)
        there.wait_for(lambda: there.is_settled(query) or not running.isActive, "all to be settled")
        error = error_of(running)
        if not error:
            running.processAllAvailable()
            running.stop()
        else:
            there.drain(query)
        outcome = there.outcome(query)
        outcome.expect("error", error, "")
        outcome.chosen = f"{moment}, {which} away for {seconds} s"
    return outcome


def _run_through(scene: Scene, query: Query, moment: Moment, server: KeptServer, seconds: float) -> StreamingQuery:
    """The query as it runs on once the server is back."""
    if moment.stage == BEGINNING:
        scene.drain(query)
        scene.producer.add(scene.name, 40)
        with _away(server, seconds):
            return scene.start(query)
    with contextlib.ExitStack() as away:
        running = meet(scene, query, moment, lambda: away.enter_context(_away(server, seconds)))
    assert running is not None
    return running


@contextlib.contextmanager
def _away(server: KeptServer, seconds: float) -> Iterator[None]:
    """The server is dead, and comes back so many seconds after the end of this."""
    server.kill()
    try:
        yield
        time.sleep(seconds)
    finally:
        server.start()


def _is_past(query: Query, batch: int) -> bool:
    return query.committed() > batch


def _while_reading(scene: Scene, strike: Callable[[KeptServer], None]) -> Outcome:
    """The scene on a server of its own that is struck three times."""
    kept = kept_server(scene.kind, scene.folder / f"{scene.name}-kept")
    with kept as server, scene.elsewhere(server.url) as there:
        return there.outcome(under_blows(there, [there.name], lambda: strike(server)))


def under_blows(scene: Scene, streams: Sequence[str], strike: Callable[[], None]) -> Query:
    """A query over these streams while a producer writes to them, and something is struck three times. Raises where it
    ends by itself."""
    hasty = Producer(scene.url, "hasty", patience=0.5)
    query = scene.query(streams=",".join(streams), maxEntriesPerTrigger=str(scene.random.randint(20, 80)))
    for stream in streams:
        scene.producer.add(stream, 100 // len(streams))
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= 0, "the first batch", running)
    done = threading.Event()

    def produce() -> None:
        for stream in cycle(streams):
            if done.is_set():
                break
            hasty.add(stream, 1)
            time.sleep(0.01)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(3):
            before = query.committed()
            strike()
            scene.wait_for(partial(_is_past, query, before), "a batch after the blow", running)
    finally:
        done.set()
        producing.join()
    for stream in streams:
        scene.wait_for(partial(scene.is_settled, query, stream), f"all of {stream} to be settled", running)
    running.processAllAvailable()
    running.stop()
    scene.producer.added += hasty.added
    return query
