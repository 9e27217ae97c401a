"""K5, K8: many streams; Nexmark's queries over streams and topics, their rows go nowhere."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Mapping

import redis

from examples.nexmark.events import SCHEMAS
from examples.nexmark.nexmark import columns, produce
from examples.nexmark.queries import QUERIES
from tools.bench.peers.client import LONGEST, Client, costs, moved
from tools.bench.peers.sides import SHAPES, Bench, Flink, Side
from tools.bench.row import NoFigureError
from tools.bench.servers import request

_EACH = 10  # entries of a stream
EVENTS = 500_000
_PREFIX = "nexmark"
_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))"
_COUNTS = (
    "SELECT auction, COUNT(*) AS bids, window_start, window_end FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), "
    "INTERVAL '2' SECOND, INTERVAL '10' SECOND)) GROUP BY auction, window_start, window_end"
)
# What Flink says in other words; the other queries it takes as they are.
_FLINK = {
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q4": "SELECT a.id, a.category, a.dateTime AS opened, MAX(b.price) AS closing FROM auction a JOIN bid b ON a.id = "
    "b.auction AND b.dateTime BETWEEN a.dateTime AND a.dateTime + INTERVAL '20' SECOND AND b.dateTime <= a.expires "
    "GROUP BY a.id, a.category, a.dateTime",
    "q5": f"SELECT c.* FROM ({_COUNTS}) c JOIN (SELECT MAX(bids) AS most, window_start, window_end FROM "
    f"({_COUNTS}) GROUP BY window_start, window_end) best ON c.window_start = best.window_start AND c.window_end = "
    "best.window_end AND c.bids = best.most",
    "q7": "SELECT window_end, price, auction, bidder FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, "
    f"window_end ORDER BY price DESC) AS place FROM {_TUMBLE.format('bid')}) WHERE place <= 1",
    "q8": "SELECT p.id, p.name, p.window_start FROM (SELECT id, name, window_start, window_end FROM "
    f"{_TUMBLE.format('person')} GROUP BY id, name, window_start, window_end) p JOIN (SELECT seller, window_start, "
    f"window_end FROM {_TUMBLE.format('auction')} GROUP BY seller, window_start, window_end) a ON p.id = a.seller AND "
    "p.window_start = a.window_start AND p.window_end = a.window_end",
    "q11": "SELECT bidder, window_start, window_end, COUNT(*) AS bids FROM TABLE(SESSION(TABLE bid PARTITION BY "
    "bidder, DESCRIPTOR(dateTime), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
}


# -- K5 ----------------------------------------------------------------------------------------------------------------


def trigger(side: Side, streams: int, triggers: int) -> dict[str, float]:
    """Read new entries of each stream or partition, again and again. Return the seconds of a batch (the first does not
    count), and what the last one cost."""
    bench, folder, seconds = side.bench, side.bench.folder("many"), []
    name = f"{folder.name}:*" if side.on_redis else bench.topic(folder.name, streams)
    with side.client() as client:
        for _ in range(triggers):
            _add_to_each(side, folder.name, streams)
            with costs(client, side.server) as cost:
                seconds.append(side.run(client, name, SHAPES["event"], "noop", folder)["milliseconds"] / 1000)
    if side.on_redis:
        bench.redis.call("UNLINK", *(f"{folder.name}:{one}" for one in range(streams)))
    return cost | {"seconds": statistics.median(seconds[1:])}


def _add_to_each(side: Side, name: str, streams: int) -> None:
    if side.on_redis:
        with side.bench.redis.client() as client:
            for first in range(0, streams, 1_000):
                some = range(first, min(first + 1_000, streams))
                page = b"".join(request("XADD", f"{name}:{one}", "*", "t", 1, "n", one) * _EACH for one in some)
                client.send(page, len(some) * _EACH)
        return
    producer = side.bench.producer()
    for partition in range(streams):
        producer.produce_batch(name, [{"value": b'{"t":1,"n":%d}' % partition}] * _EACH, partition=partition)
    if left := producer.flush(LONGEST):
        raise NoFigureError(f"Kafka: {left:,} messages were not taken within {LONGEST:g} s")


# -- K8 ----------------------------------------------------------------------------------------------------------------


def nexmark(side: Side) -> dict[str, float]:
    """Run the queries one after the other in a process that has run the first one before."""
    count, found = _load(side.bench), dict[str, float]()
    run = _flink if isinstance(side, Flink) else _spark
    with side.client() as client:
        for number, name in enumerate([next(iter(QUERIES)), *QUERIES]):
            with costs(client, side.server) as cost:
                client.ask(run(side, client, name, number))
            found |= {f"{name}: {figure}": value for figure, value in moved(cost, count).items()}
    return found


def _spark(side: Side, _client: Client, name: str, _number: int) -> Mapping[str, object]:
    query, folder = QUERIES[name], side.bench.folder(name)
    sources = {
        kind: side.source(
            _stream(side, kind), columns(kind, query) if side.on_redis else SCHEMAS[kind], f"{folder.name}-{kind}"
        ) | {"watermark": "dateTime"}
        for kind in SCHEMAS if re.search(rf"(FROM|JOIN) {kind}\b", query.sql)
    }  # fmt: skip
    return {
        "do": "query", "sources": sources, "sql": query.sql, "sink": {"format": "noop", "options": {}},
        "checkpoint": str(folder), "trigger": {"availableNow": True},
    }  # fmt: skip


def _flink(side: Side, client: Client, name: str, number: int) -> str:
    assert isinstance(side, Flink)
    for kind, schema in () if number else SCHEMAS.items():
        timed = schema.replace("TIMESTAMP", "TIMESTAMP_LTZ(3)") + ", WATERMARK FOR dateTime AS dateTime"
        side.create(client, kind, _quoted(timed), side.read(_stream(side, kind), to_end=True))
    sql = _FLINK.get(name, " ".join(QUERIES[name].sql.split()))
    return f"CREATE TABLE out{number} WITH ('connector' = 'blackhole') AS {_quoted(sql)}"


def _quoted(sql: str) -> str:
    return sql.replace("dateTime", "`dateTime`")  # a keyword of Flink


def _stream(side: Side, kind: str) -> str:
    return f"{_PREFIX}:{kind}" if side.on_redis else f"{_PREFIX}-{kind}"


@functools.cache
def _load(bench: Bench) -> int:
    """Write the events once. Return how many."""
    count, folder = bench.entries(EVENTS), bench.folder("events")
    with redis.Redis(port=bench.redis.port) as client:
        produce(client, _PREFIX, folder, count)
    producer = bench.producer()
    for kind in SCHEMAS:
        topic = bench.topic(f"{_PREFIX}-{kind}")  # one partition: the order of time is kept
        messages = [{"value": line} for line in (folder / kind / "events.json").read_bytes().splitlines()]
        producer.produce_batch(topic, messages, partition=0)
        producer.flush()
    return count
