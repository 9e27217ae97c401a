"""The driver is killed at random moments: while entries are retried, and of queries that write and read shards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.connector.shards.names import shards_of
from spark_streams.operations.verify.history import Added, History, Outcome, Row, check_history
from spark_streams.operations.verify.running_query import PATIENCE
from tools.chaos.query import Query
from tools.chaos.stage import Case, Spark, Stage
from tools.servers.cluster import RedisCluster
from tools.waiting import until

# -- entries fail and are retried, while the driver is killed at random moments ----------------------------------------

_TRIES, _NEVER = 3, 99


def retried(stage: Stage) -> None:
    """A rule accepts an entry at its first, second or third attempt, or never; some numbers cannot be decoded.

    In the end each accepted entry is one row, each other entry is one dead letter, and no entry waits for a retry.
    """
    case, chance = stage.case("retried"), stage.random
    client, delays, kills = case.client, chance.choice(["50ms,100ms", "1ms,2s", "500ms,1ms"]), chance.randint(2, 4)
    dead = {"mode": "DEADLETTER", "deadLetterStream": f"{case.name}-dead", "retryDelay": delays}
    query = case.reads(None, "retries", maxEntriesPerTrigger="40", **dead)
    accepted_at: dict[int, int] = {}  # number → attempt

    def add() -> None:
        count = chance.randint(20, 60)
        right_at = [chance.choice([1, 1, 2, 3, _NEVER]) for _ in range(count)]
        fits = [chance.random() < 0.9 for _ in range(count)]
        entries = [
            {"right_at": at} if fit else {"right_at": at, "n": "none"} for at, fit in zip(right_at, fits, strict=True)
        ]
        for entry, at, fit in zip(case.producer.add_fields(case.name, entries), right_at, fits, strict=True):
            accepted_at[entry.value[1]] = at if fit else _NEVER

    waiting = [*[retry_stream(case.name, "g", n) for n in range(1, _TRIES)], returned_stream(case.name, "g")]

    def is_over() -> bool:
        ended = client.xlen(query.out) + client.xlen(dead["deadLetterStream"])
        return ended >= len(accepted_at) and not any(map(client.xlen, waiting)) and not case.pending()

    for number in range(kills + 1):
        add()
        with Spark(stage.folder, query, threads=2) as spark:
            spark.wait_for(partial(query.has, "up"), "the query", query)
            if number < kills:
                time.sleep(chance.uniform(0, 8))
                add()
                time.sleep(chance.uniform(0, 2))
            else:
                spark.wait_for(is_over, "the end of all retries", query)
                case.expect("error", spark.stop(query), "")
    case.choices = f"{len(accepted_at)} entries, {kills} kills, delays {delays}"
    case.bad = {entry.place for entry in case.added if accepted_at[entry.value[1]] == _NEVER and entry.place}
    case.unordered = {entry.place for entry in case.added if entry.place}
    case.judge(acks_seen=False)
    rows = Counter((int(fields["n"]), int(fields["attempt"])) for _, fields in client.xrange(query.out))
    case.expect("rows", rows, Counter({(n, at): 1 for n, at in accepted_at.items() if at <= _TRIES}))
    letters = [fields for _, fields in client.xrange(dead["deadLetterStream"])]
    case.expect("dead letters", len(letters), len(case.bad))
    case.expect("deliveries", {letter["dl.deliveries"] for letter in letters} - {str(_TRIES)}, set())
    case.expect("entries waiting for a retry", sum(map(client.xlen, waiting)), 0)
    case.expect("pending of the returned", client.xpending(returned_stream(case.name, "g"), "g")["pending"], 0)


# -- a thousand keys over eight shards ---------------------------------------------------------------------------------

#    feed ── writer ──> out:writer, 8 shards ── reader, ordered ──> out:reader, 8 shards

SHARDS, KEYS = 8, 1_000
_CHUNK = 1_000  # entries of a pipeline


def sharded(stage: Stage, rows: int = 20_000, kills: int = 4) -> list[str]:
    """Both queries run in one Spark, which gets SIGKILL during batches. In a cluster a master is killed, too.

    The numbers of each key keep their order, and each is there once. Return the errors that ended queries.
    """
    case, chance = stage.case("reader"), stage.random
    cluster = stage.replicated if isinstance(stage.replicated, RedisCluster) else None
    for start in range(0, rows, _CHUNK):
        numbers = range(start, start + _CHUNK)  # the keys take turns
        case.producer.add_fields("feed", [{"key": f"key-{n % KEYS}", "n": n // KEYS} for n in numbers])
    queries = _queries(stage, case, rows)
    master_round = chance.randrange(kills) if cluster is not None else -1
    amid, ended, masters = Counter[str](), list[str](), 0
    for number in range(kills):
        with Spark(stage.folder, *queries) as spark:
            _wait_for_batch(spark, case, queries, rows)
            if cluster is not None and number == master_round:
                _kill_a_master(cluster, chance.choice(shards_of(queries[0].out, SHARDS)))
                masters += 1
                time.sleep(chance.uniform(0, 2))
            amid.update(query.name for query in queries if query.logged() > query.committed())
            ended += [text for query in queries if (text := query.ended())]
        if cluster is not None:
            cluster.healthy()
    _run_to_end(stage, case, queries, rows, ended)
    _judge(case, rows)
    during = ", ".join(f"{count} during a batch of the {name}" for name, count in sorted(amid.items()))
    case.choices = f"drivers killed {kills} times ({during}), masters {masters}, restarts after errors: {len(ended)}"
    return ended


def _queries(stage: Stage, case: Case, rows: int) -> tuple[Query, Query]:
    """Return the writer and the reader."""
    limits = {"ordered": "true", "maxEntriesPerTrigger": str(max(500, rows // 25))}
    chunk = {"chunkSize": str(stage.random.choice([100, 500, 5_000]))}
    both = replace(case.reads(None, "shards", **limits), out_options={"shards": str(SHARDS), "shardBy": "key"} | chunk)
    writer = replace(both, folder=str(stage.folder / "writer"), out="out:writer")
    writer = replace(writer, options=both.options | {"streams": "feed"})
    shards = {"streams": writer.out, "shards": str(SHARDS)}
    case.query = replace(both, folder=str(stage.folder / "reader"), out="out:reader", options=both.options | shards)
    return writer, case.query


def _wait_for_batch(spark: Spark, case: Case, queries: Sequence[Query], rows: int) -> None:
    """Wait until a query by chance runs a batch that this Spark has started, or until all rows are there."""
    target = case.random.choice(queries)
    spark.wait_for(lambda: all(query.has("up") for query in queries), "both queries", *queries)
    first = max(target.logged(), 0)
    spark.wait_for(
        lambda: target.logged() > max(first, target.committed()) or _is_over(case, queries, rows),
        f"a batch of the {target.name}",
    )
    time.sleep(case.random.uniform(0, 0.3))


def _is_over(case: Case, queries: Sequence[Query], rows: int) -> bool:
    """Whether all rows are there, or an error has ended a query."""
    held = sum(map(case.client.xlen, shards_of(case.query.out, SHARDS)))
    return held >= rows or any(query.ended() for query in queries)


def _kill_a_master(cluster: RedisCluster, shard: str) -> None:
    before = cluster.owner(shard)
    cluster.kill(before)
    until(lambda: before not in cluster.masters(), "no failover")


def _run_to_end(stage: Stage, case: Case, queries: Sequence[Query], rows: int, ended: list[str]) -> None:
    """Run both queries until the last shards have all rows and no batch follows.

    If an error ends a query, start both again, as an operator does.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:  # the judge reports missing rows
        with Spark(stage.folder, *queries) as spark:
            spark.wait_for(lambda: _is_over(case, queries, rows), "the end")
            failed = [text for query in queries if (text := query.ended())]
            if not failed:
                committed = [query.committed() for query in queries]
                time.sleep(2)
                spark.wait_for(lambda: all(q.logged() == q.committed() for q in queries), "the last commit", *queries)
                if committed == [query.committed() for query in queries]:
                    return
        ended += failed


def _judge(case: Case, rows: int) -> None:
    """Compare the rows in the last shards with the rows of the feed. The key of a row is the place of its order."""
    history = History(acks_seen=False)
    for n in range(rows):
        key, number = f"key-{n % KEYS}", n // KEYS
        history.added.append(Added(key, (key, number), Outcome.OK, f"{number}-0"))
    for shard, name in enumerate(shards_of(case.query.out, SHARDS)):
        for position, (_, fields) in enumerate(case.client.xrange(name)):
            key, number = fields["key"], int(fields["n"])
            history.rows.append(Row((key, f"{number}-0"), (key, number), 0, shard, 0, position))
    case.history, case.report = history, check_history(history)
