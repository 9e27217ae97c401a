"""The scenes of one query: it ends, its sink is away, its server is down for a while, and a task of it stands still."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle

from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.job import error_of
from tools.chaos.producer import Producer
from tools.chaos.query import Fault, Query, into_a_stream
from tools.chaos.scene import STAGES as MOMENTS
from tools.chaos.scene import Moment, Outcome, Scene, pending, run_to_moment
from tools.chaos.servers import DurableServer, durable_server

# -- the end of a run that reads all entries and ends ------------------------------------------------------------------


def once(scene: Scene) -> Outcome:
    """trigger(once=True) is refused by a named error, because Spark reports no commit for it (FACTS S25).

    The refusal comes before the group delivers an entry. The query then reads with availableNow.
    """
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    scene.producer.add(scene.name, scene.random.randint(20, 80))
    error, _ = scene.run(query, "once")
    pending_count = len(pending(query, scene.name))
    scene.drain(query)
    outcome = scene.outcome(query)
    outcome.expect_error(error, "RSTREAM_UNSUPPORTED")
    outcome.expect("pending after the refusal", pending_count, 0)
    return outcome


def available_now(scene: Scene) -> Outcome:
    """trigger(availableNow=True) reads in batches up to the last entry at its start. Two runs."""
    query = scene.query(None, maxEntriesPerTrigger="30", entriesPerPartition="15")
    pending_counts, errors = [], []
    for _ in range(2):
        scene.producer.add(scene.name, scene.random.randint(20, 80))
        error, _ = scene.run(query, "now")
        errors.append(error)
        pending_counts.append(len(pending(query, scene.name)))
    outcome = scene.outcome(query)
    outcome.expect("errors", errors, ["", ""])
    outcome.expect("pending after each run", pending_counts, [0, 0])
    return outcome


# -- the server of the sink is down for a long time --------------------------------------------------------------------


def many_restarts(scene: Scene, entries: int | None = None, restarts: int | None = None) -> Outcome:
    """Restart a query with maxDeliveries while its sink is down.

    maxDeliveries splits a batch whose query fails each time, and gives up an entry that fails alone. It must do neither
    if the sink causes the failures.
    """
    entries = entries or scene.random.randint(3, 30)
    restarts = restarts or scene.random.randint(6, 12)
    with durable_server(scene.kind, scene.folder / "sink") as server:
        options = {"maxDeliveries": "2", "deadLetterStream": f"{scene.name}-dead", "maxEntriesPerTrigger": "40"}
        query = into_a_stream(scene.query(None, **options), scene.random)
        query = replace(query, out_url=server.url, patience=0.05)
        if scene.random.random() < 0.5:  # then the failing batch is not the first one
            scene.producer.add(scene.name, 20)
            scene.drain(query)
        scene.producer.add(scene.name, entries)
        server.kill()
        errors = [scene.run(query)[0] for _ in range(restarts)]
        server.start()
        scene.drain(query)
        outcome = scene.outcome(query)
        for error in errors:
            if not error.startswith(("[RSTREAM_RETRIES_EXHAUSTED]", "[RSTREAM_SERVER_UNREACHABLE]")):
                outcome.wrong.append(f"ended with {error[:300]!r}")
    return outcome


# -- the server is down for a while ------------------------------------------------------------------------------------


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


# -- a task of the exactly-once sink stands still while the query continues without it, and then writes ----------------


def task(
    scene: Scene, later_batches: int | None = None, elsewhere: bool | None = None, rows: int | None = None
) -> Outcome:
    """Give up the task's attempt; another attempt writes.

    later_batches: before the task continues; elsewhere: these write to another stream, so that they do not use the
    ledger of the task's stream; rows: that the task had written before.
    """
    query, later_batches = _query(scene, "zombie", later_batches, elsewhere, rows)
    running = scene.start(query)
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of another attempt", running)
    _go_on(scene, later_batches)
    scene.wait_for(lambda: _is_done(scene, query, later_batches), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    return _outcome(scene, query, later_batches)


def of_an_old_run(scene: Scene, later_batches: int | None = None, elsewhere: bool | None = None) -> Outcome:
    """Stop the query with an unfinished batch, and start it again, before the task continues."""
    query, later_batches = _query(scene, "orphan", later_batches, elsewhere, None)
    error, _ = scene.run(query, "always")
    running = scene.start(replace(query, fault=None))
    scene.wait_for(lambda: query.committed() >= _batch(query), "the batch of the new run", running)
    _go_on(scene, later_batches)
    scene.wait_for(lambda: _is_done(scene, query, later_batches), "the batches after it", running)
    _wake(scene, query)
    running.processAllAvailable()
    running.stop()
    outcome = _outcome(scene, query, later_batches)
    if "is given up" not in error and "fails in attempt" not in error:
        outcome.wrong.append(f"the first run ended with {error[:300]!r}")
    return outcome


def _query(
    scene: Scene, kind: str, later_batches: int | None, elsewhere: bool | None, rows: int | None
) -> tuple[Query, int]:
    later_batches = scene.random.randint(0, 3) if later_batches is None else later_batches
    elsewhere = scene.random.choice([True, False]) if elsewhere is None else elsewhere
    rows = scene.random.choice([0, 0, 7]) if rows is None else rows
    fault = Fault(kind, scene.random.randint(0, 1), "writing", rows=rows)
    streams = f"{scene.name}:0,{scene.name}:1"
    query = scene.query(fault, streams=streams, maxEntriesPerTrigger="30", entriesPerPartition="15")
    query = replace(into_a_stream(query, scene.random), routed=elsewhere, out_options={"chunkSize": "3"})
    scene.producer.add(f"{scene.name}:0", 30 * (fault.batch + 1))
    return query, later_batches


def _batch(query: Query) -> int:
    assert query.fault is not None
    return query.fault.batch


def _go_on(scene: Scene, batches: int) -> None:
    """Add entries for this number of batches. If the query is routed, none writes to the zombie's stream."""
    for _ in range(batches):
        scene.producer.add(f"{scene.name}:1", 30)


def _wake(scene: Scene, query: Query) -> None:
    query.sign("wake").touch()
    scene.wait_for(lambda: query.sign("zombie").exists(), "the zombie to end")


def _is_done(scene: Scene, query: Query, later_batches: int) -> bool:
    streams = [f"{scene.name}:0", *([f"{scene.name}:1"] if later_batches else [])]
    return query.committed() >= _batch(query) + later_batches and all(
        scene.is_settled(query, stream) for stream in streams
    )


def _outcome(scene: Scene, query: Query, later_batches: int) -> Outcome:
    report = query.sign("zombie").read_text()
    outcome = scene.outcome(query)
    assert query.fault is not None
    where = "a stream for each" if query.routed else "one stream"
    outcome.choices = (
        f"batch {query.fault.batch}, {later_batches} later, {query.fault.rows} rows, {where}; zombie: {report[:150]}"
    )
    if "no file" in report:
        outcome.wrong.append(f"the zombie did not continue: {report[:300]}")
    return outcome
