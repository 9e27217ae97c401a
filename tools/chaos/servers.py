"""Servers are killed, paused and replaced while a query runs."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle

from spark_streams.connector.keys import slot_of
from spark_streams.operations.verify.history import Outcome
from spark_streams.operations.verify.judge import Fault as Wrong
from tools.chaos.query import Fault
from tools.chaos.stage import Case, DurableServer, Replicated, Stage, is_committed
from tools.servers.cluster import RedisCluster
from tools.waiting import until

# -- servers are away --------------------------------------------------------------------------------------------------


def many_restarts(stage: Stage, entries: int | None = None, restarts: int | None = None) -> None:
    """Restart a query with maxDeliveries while its sink is away.

    maxDeliveries splits a batch whose query fails each time, and gives up an entry that fails alone. It must do neither
    if the sink causes the failures.
    """
    chance, spark, server = stage.random, stage.spark(), stage.durable_server()
    case = stage.case(out_url=server.url)
    limits = {"maxEntriesPerTrigger": "40", "maxDeliveries": "2", "deadLetterStream": f"{case.name}-dead"}
    query = case.query = replace(case.reads(None, **limits), patience=0.05)
    if chance.random() < 0.5:  # then the failing batch is not the first one
        case.add(20)
        spark.drain(query)
    case.add(entries or chance.randint(3, 30))
    server.kill()
    for _ in range(restarts or chance.randint(6, 12)):
        case.expect_error(spark.run(query), "RSTREAM_RETRIES_EXHAUSTED", "RSTREAM_SERVER_UNREACHABLE")
    server.start()
    spark.drain(query)
    case.judge()


BEGINNING = "beginning"  # start of a query that has a checkpoint
MOMENTS = (
    "started", "looked", "reserved", "logged", "reading", "writing", "closing", "written", "committed", BEGINNING,
)  # fmt: skip


def restarted(stage: Stage, moment: str = "", seconds: float = 0) -> None:
    """SIGKILL the server of the source, of the sink, or of both at one of MOMENTS, and start it some seconds later.

    The query waits and continues, and no task ends it.
    """
    chance, spark, server = stage.random, stage.spark(), stage.durable_server()
    rows = 0 if moment else chance.choice([0, 5, 20])
    moment, seconds = moment or chance.choice(MOMENTS), seconds or chance.choice([2, 2, 7])  # first connection: 5 s
    batch = 0 if moment == "started" else chance.randint(0, 1)
    sink = stage.sink = stage.sink or chance.choice(["attempts", "stream"])
    role = chance.choice(["both", "source", "sink"]) if sink == "stream" else "source"
    urls = {"both": (server.url, ""), "source": (server.url, stage.servers[stage.kind]), "sink": ("", server.url)}
    case = stage.case("s", "", *urls[role])
    case.choices = f"{moment}, batch {batch}, {role} down for {seconds} s"
    fault = None if moment == BEGINNING else Fault("pause", batch, moment, rows)
    query = case.reads(fault, maxEntriesPerTrigger="40")
    case.add(chance.randint(100, 120))
    if moment == BEGINNING:
        spark.drain(query)
        case.add(40)
        server.kill()
        spark.start(query)
        spark.wait_for(partial(query.has, "up"), "the query", query)
    else:
        spark.start(query)
        spark.wait_for(partial(query.has, "held"), f"the moment ({moment})", query)
        server.kill()
        query.sign("go").touch()
    time.sleep(seconds)
    server.start()
    spark.wait_for(lambda: query.ended() is not None or case.is_acknowledged(), "all to be acknowledged")
    error = spark.stop(query)
    case.expect("error", error, "")
    if error:
        spark.drain(query)
    case.judge()


def server_killed(chance_seconds: float, server: DurableServer) -> None:
    """SIGKILL the server, and start it with its files: the query continues without a restart."""
    server.kill()
    time.sleep(chance_seconds)
    server.start()


def server_paused(chance_seconds: float, server: DurableServer) -> None:
    """SIGSTOP the server for some seconds, longer than the producer waits for replies."""
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(1 + 4 * chance_seconds)
    server.process.send_signal(signal.SIGCONT)


def struck_server(stage: Stage, strike: Callable[[float, DurableServer], None]) -> None:
    """The server of source and sink is struck three times."""
    server = stage.durable_server()
    case = stage.case(url=server.url)
    _run_under(stage, case, [case.name], lambda _: strike(stage.random.random(), server))
    case.judge()


def _run_under(stage: Stage, case: Case, streams: Sequence[str], strike: Callable[[str], None]) -> None:
    """Run a query over these streams while a producer writes to them, and strike one of the streams three times.

    Raises AssertionError if the query ends.
    """
    spark, hasty, stopping = stage.spark(), case.hasty("hasty"), threading.Event()
    query = case.reads(streams=",".join(streams), maxEntriesPerTrigger=str(stage.random.randint(20, 80)))
    case.add(100 // len(streams))
    spark.start(query)
    spark.wait_for(lambda: query.committed() >= 0, "the first batch", query)

    def produce() -> None:
        for stream in cycle(streams):
            if stopping.wait(0.01):
                break
            hasty.add(stream, 1)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        for _ in range(3):
            before = query.committed()
            strike(stage.random.choice(streams))
            spark.wait_for(partial(is_committed, query, before + 1), "a batch after the fault", query)
    finally:
        stopping.set()
        producing.join()
    spark.wait_for(case.is_acknowledged, "all to be acknowledged", query)
    case.expect("error", spark.stop(query), "")
    case.added = [*case.added, *hasty.added]


# -- masters are killed, frozen and replaced, and slots move, while a query reads and a producer writes ----------------

Strike = Callable[[Stage, Replicated, str], None]
STREAMS = 6  # in a cluster their slots belong to all masters
_FAILOVERS = 3  # requests
_GIVEN_UP = 15.0  # seconds after which sentinels have given a failover up
_STANDS_STILL = 8.0  # seconds, in which another server becomes the master


def _master(servers: Replicated, stream: str) -> int:
    return servers.owner(stream) if isinstance(servers, RedisCluster) else servers.master()


def _master_killed(stage: Stage, servers: Replicated, stream: str) -> None:
    before = _master(servers, stream)
    servers.kill(before)
    until(lambda: _master(servers, stream) != before, "no failover")
    time.sleep(stage.random.random())


def _master_stands_still(stage: Stage, servers: Replicated, stream: str) -> None:
    before = _master(servers, stream)
    servers.freeze(before)
    try:
        time.sleep(_STANDS_STILL)
    finally:
        servers.thaw(before)


def _slots_move(stage: Stage, servers: Replicated, stream: str) -> None:
    """Move the slots of the stream and of some others, key by key."""
    assert isinstance(servers, RedisCluster)
    name = stream.rpartition(":")[0]
    for moved in [stream, *(f"{name}:{n}" for n in stage.random.choices(range(STREAMS), k=3))]:
        others = [port for port in servers.masters() if port != servers.owner(moved)]
        servers.move(slot_of(moved.encode()), stage.random.choice(others))


def _slots_move_and_a_master_is_killed(stage: Stage, servers: Replicated, stream: str) -> None:
    _slots_move(stage, servers, stream)
    _master_killed(stage, servers, f"{stream.rpartition(':')[0]}:{stage.random.randrange(STREAMS)}")


def _failed_over(stage: Stage, servers: Replicated, stream: str) -> None:
    """Request a failover. On a busy machine sentinels give up a slow failover: then request it again."""
    assert not isinstance(servers, RedisCluster)
    before = servers.master()
    for _ in range(_FAILOVERS - 1):
        servers.fail_over()
        with contextlib.suppress(AssertionError):
            until(lambda: servers.master() != before, "no failover", _GIVEN_UP)
            return
    servers.fail_over()
    until(lambda: servers.master() != before, "no failover")


CLUSTER_FAULTS: Mapping[str, Strike] = {
    "master killed": _master_killed,
    "master stands still": _master_stands_still,
    "slots move": _slots_move,
    "slots move and a master is killed": _slots_move_and_a_master_is_killed,
}
SENTINEL_FAULTS: Mapping[str, Strike] = {
    "master killed": _master_killed,
    "master stands still": _master_stands_still,
    "failover": _failed_over,
}


def replaced(stage: Stage, strike: Strike) -> None:
    """Three of these faults: no row is lost or duplicated.

    Entries that no replica held when their master was killed are missing for every client, and do not count.
    """
    case, servers = stage.case(), stage.replicated
    assert servers is not None
    streams = [f"{case.name}:{n}" for n in range(STREAMS)]

    def struck(stream: str) -> None:
        servers.healthy()
        strike(stage, servers, stream)

    _run_under(stage, case, streams, struck)
    servers.healthy()
    present = set(chain.from_iterable(((name, entry) for entry, _ in case.client.xrange(name)) for name in streams))
    confirmed = {entry.place for entry in case.added if entry.outcome is Outcome.OK and entry.place}
    case.removed = confirmed - present
    # A replica may lack deliveries of the group. The query then sets the group's position without acknowledgements.
    case.judge().found.pop(Wrong.UNSEEN, None)
