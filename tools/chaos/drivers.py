"""The driver of queries is killed at a point of a batch or at random, or stopped while a new one takes over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_streams.connector.keys import key_beside, retry_stream, returned_stream
from spark_streams.connector.shards.names import shards_of
from spark_streams.operations.verify.history import Added, Outcome, Place, Row
from spark_streams.operations.verify.judge import Judgement
from spark_streams.operations.verify.running_query import BAD, PATIENCE, processes_of
from tools.chaos.query import Fault, Query
from tools.chaos.stage import Case, Spark, Stage
from tools.history import History, check_history
from tools.once import once
from tools.servers.cluster import RedisCluster
from tools.waiting import until

# -- the driver is killed at a point of a batch, entries arrive while it is down, and it is started again --------------

# name: (stage, kind of files, startingOffsets). With `latest`, and with claims, the kill is in batch 0.
KILLS = {
    "started": ("started", "parquet", "latest"),
    "looked": ("looked", "parquet", "earliest"),
    "reserved": ("reserved", "parquet", "earliest"),
    "logged": ("logged", "parquet", "earliest"),
    "logged with claims": ("logged", "parquet", "earliest"),
    "logged first": ("logged", "parquet", "latest"),
    "reading": ("reading", "attempts", "earliest"),
    "writing": ("writing", "attempts", "earliest"),
    "closing": ("closing", "attempts", "earliest"),
    "written": ("written", "attempts", "earliest"),
    "written to Parquet": ("written", "parquet", "earliest"),
    "commit entry lost": ("", "parquet", "earliest"),
    "committed": ("committed", "parquet", "earliest"),
    "acknowledging": ("acknowledging", "parquet", "earliest"),
}
_OTHER_GROUP = "other"


@dataclass
class AtKill:
    """What was there at the kill of a driver."""

    batch: int  # of the kill point
    logged: int  # last batch of the offset log
    committed: int  # and of the commit log
    pending: list[Place]
    before: set[Place]  # entries older than the start of a query with `latest`


def killed(stage: Stage, points: Iterable[str]) -> dict[str, AtKill]:
    """One Spark gets SIGKILL when all queries stand still at their points. The next one drains, with other limits."""
    chance, at_kill = stage.random, dict[str, AtKill]()
    cases = {case: _killed_at(point, case) for point, case in stage.case_of_each(points)}
    acknowledged = {case: _read_by_others(case) for case in cases if case.query.fault}
    with Spark(stage.folder, *[case.query for case in cases], threads=4 + len(cases)) as spark:
        for case, before in cases.items():
            if before:
                spark.wait_for(partial(_start_is_stored, case), f"the stored start of {case.name}", case.query)
                if case.query.fault and case.query.fault.stage != "started":
                    case.add(chance.randint(10, 70))
                    case.query.sign("go").touch()
        for case in cases:
            spark.wait_for(partial(_is_at_its_point, case), f"the kill point of {case.name}", case.query)
        for name, case in stage.cases.items():
            case.add(chance.randint(10, 70))
            logged, committed = case.query.logged(), case.query.committed()
            batch = case.query.fault.batch if case.query.fault else committed
            at_kill[name] = AtKill(batch, logged, committed, case.pending(), cases[case])
    for name, case in stage.cases.items():
        if case.query.fault is None:
            _lose_the_last_commit(case.query)
            at_kill[name].committed = case.query.committed()
        case.add(chance.randint(10, 70))
        # A batch must hold at least 120 entries: so many may be reserved ahead, and are expected in the next batch.
        limit = {"maxEntriesPerTrigger": str(chance.randint(120, 800))}
        case.query = replace(case.query, options=case.query.options | limit)
    with Spark(stage.folder) as spark:
        spark.drain(*[case.query for case in cases])
    for case, before in cases.items():
        case.added = [entry for entry in case.added if entry.place not in before]
        case.judge()
        present = {(stream, entry) for stream in case.streams for entry, _ in case.client.xrange(stream)}
        known = present | acknowledged.get(case, set())
        missing = [entry.place for entry in case.producer.added if entry.place and entry.place not in known]
        case.expect("missing for the other group", missing if case.query.fault else [], [])
    return at_kill


def _killed_at(point: str, case: Case) -> set[Place]:
    """Set the query, and add entries. Return those that it must not read."""
    stage, files, starting = KILLS[point]
    chance, claims = case.random, point == "logged with claims"
    streams = [f"{case.name}:{n}" for n in range(chance.randint(1, 2))]
    options = {"streams": ",".join(streams), "startingOffsets": starting}
    options |= {"maxEntriesPerTrigger": str(chance.randint(40, 90))}
    options |= {"entriesPerPartition": str(chance.choice([15, 40, 1000]))}
    if chance.random() < 0.3:
        options["maxBytesPerTrigger"] = chance.choice(["3kb", "1mb"])
    elif chance.random() < 0.3:
        options["maxEntriesPerTrigger"] = json.dumps({"*": chance.randint(30, 60)})
    if claims:
        options["claimIdle"] = "1ms"
    if stage and chance.random() < 0.6:  # with a lost commit entry, the entries of the batch would be trimmed
        options["onCommit"] = chance.choice(["trim", "delete"])
    batch = 0 if starting == "latest" or claims else 1 if stage == "looked" else chance.randint(1, 2)
    fault = Fault("hold", batch, stage, chance.randint(1, 15)) if stage else None
    case.reads(fault, "" if case.sink == "stream" else files, **options)
    for stream in streams if stage else ():
        case.client.xgroup_create(stream, _OTHER_GROUP, "0", mkstream=True)
    if starting == "latest":
        return {entry.place for entry in case.add(5) if entry.place}
    case.add(chance.randint(200, 260))
    for stream in streams if claims else ():
        case.client.xgroup_create(stream, case.query.group, id="0")
        read = case.client.xreadgroup(case.query.group, "rogue", {stream: ">"}, count=chance.randint(5, 20))
        case.unordered |= {(stream, entry) for _, entries in read for entry, _ in entries}
    return set()


def _read_by_others(case: Case) -> set[Place]:
    """Read some entries in another group, and acknowledge some of them. Return these."""
    acknowledged = set[Place]()
    for stream in case.streams:
        count = case.random.randint(1, 150)
        for _, entries in case.client.xreadgroup(_OTHER_GROUP, "c", {stream: ">"}, count=count):
            chosen = [entry for entry, _ in entries if case.random.random() < 0.8]
            acknowledged |= {(stream, entry) for entry in chosen}
            if chosen:
                case.client.xack(stream, _OTHER_GROUP, *chosen)
    return acknowledged


def _start_is_stored(case: Case) -> bool:
    """Whether a key, or from the first trigger on the group, stores the start."""
    return all(
        case.client.exists(key_beside(stream, "first", case.query.group, "spark"))
        or any(group["name"] == case.query.group for group in case.client.xinfo_groups(stream))
        for stream in case.streams
    )


def _is_at_its_point(case: Case) -> bool:
    if case.query.fault is not None:
        return case.query.has("held")
    return case.query.committed() >= 0 and case.is_acknowledged()


def _lose_the_last_commit(query: Query) -> None:
    """Delete the last entry of the commit log, as a file system may lose it."""
    last = query.committed()
    for name in (str(last), f".{last}.crc"):
        (query.path / "checkpoint" / "commits" / name).unlink(missing_ok=True)


# -- the driver is stopped (SIGSTOP), a new one takes over, and the old one continues ----------------------------------

STOPS = ("reserved", "logged", "reading", "writing", "closing", "written", "committed", "acknowledging")
_LATER = 2  # batches of the new driver before the old one continues


def stopped(stage: Stage, points: Iterable[str]) -> None:
    """The old driver continues with a task that writes, with a reserved batch, or with an acknowledgement."""
    chance = stage.random
    cases = [_stopped_at(point, case) for point, case in stage.case_of_each(points)]
    old = [case.query for case in cases]
    with Spark(stage.folder, *old, threads=4 + len(cases)) as first:
        for query in old:
            first.wait_for(partial(query.has, "held"), f"the kill point of {query.name}", query)
        _signal(first, signal.SIGSTOP)
        for case in cases:
            _wait_for_the_lease(case)
            case.add(chance.randint(60, 90))
            case.query = replace(case.query, fault=None, driver="new-")
        with Spark(stage.folder, *[case.query for case in cases]) as second:
            for case, query in zip(cases, old, strict=True):
                second.wait_for(partial(_is_past, query, _LATER), f"later batches of {case.name}", case.query)
            for query in old:
                query.sign("go").touch()
            _signal(first, signal.SIGCONT)
            for query in old:
                first.end(query)
            for case in cases:
                case.add(20)
            for case in cases:
                second.wait_for(case.is_acknowledged, f"all of {case.name} to be acknowledged", case.query)
                case.expect("error of the new driver", second.stop(case.query), "")
    for case in cases:
        case.judge()


def _stopped_at(point: str, case: Case) -> Case:
    fault = Fault("pause", case.random.randint(0, 1), point, rows=case.random.choice([0, 0, 5]))
    case.reads(fault, maxEntriesPerTrigger="30", entriesPerPartition="10")
    case.add(case.random.randint(100, 140))
    return case


def _signal(spark: Spark, number: signal.Signals) -> None:
    """Send a signal to every process of a Spark."""
    for pid, _ in processes_of(spark.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for_the_lease(case: Case) -> None:
    """Wait until the session of the old driver has expired. A stopped driver cannot renew it."""
    client = case.client
    leases = client.mget(list(client.scan_iter(f"rstream:lease:*{case.name}*", count=1000)) or ["none"])
    sessions = [json.loads(lease)["session"] for lease in leases if lease is not None]
    until(lambda: not (sessions and client.exists(*sessions)), "the lease does not expire", PATIENCE)


def _is_past(query: Query, batches: int) -> bool:
    return query.fault is not None and query.committed() >= query.fault.batch + batches


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
        chosen = [(chance.choice([1, 1, 2, 3, _NEVER]), chance.random() < 0.9) for _ in range(chance.randint(20, 60))]
        entries = [{"right_at": at} | ({} if fits else {"n": BAD}) for at, fits in chosen]
        for entry, (at, fits) in zip(case.producer.add_fields(case.name, entries), chosen, strict=True):
            accepted_at[entry.value[1]] = at if fits else _NEVER

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
    rows = [(int(fields["n"]), int(fields["attempt"])) for _, fields in client.xrange(query.out)]
    accepted = once([(n, at) for n, at in accepted_at.items() if at <= _TRIES], rows)
    case.expect("rows at their attempts", str(accepted), str(Judgement()))
    letters = [fields for _, fields in client.xrange(dead["deadLetterStream"])]
    case.expect("dead letters", len(letters), len(case.bad))
    case.expect("deliveries", {letter["dl.deliveries"] for letter in letters} - {str(_TRIES)}, set())
    case.expect("entries waiting for a retry", sum(map(client.xlen, waiting)), 0)
    case.expect("pending of the returned", client.xpending(returned_stream(case.name, "g"), "g")["pending"], 0)


# -- a thousand keys over eight shards ---------------------------------------------------------------------------------

#    feed ── writer ──> out:writer, 8 shards ── reader, ordered ──> out:reader, 8 shards

SHARDS, KEYS = 8, 1_000
_CHUNK = 1_000  # entries of a pipeline
_RESTARTS = 20  # of a query that an error has ended


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
    amid, ended = Counter[str](), list[str]()
    for number in range(kills):
        with Spark(stage.folder, *queries) as spark:
            _wait_for_batch(spark, case, queries, rows)
            if cluster is not None and number == master_round:
                master = cluster.owner(chance.choice(shards_of(queries[0].out, SHARDS)))
                cluster.kill(master)
                until(partial(_is_replaced, cluster, master), "no failover")
                time.sleep(chance.uniform(0, 2))
            amid.update(query.name for query in queries if query.logged() > query.committed())
            ended += [text for query in queries if (text := query.ended())]
        if cluster is not None:
            cluster.healthy()
    with Spark(stage.folder) as spark:
        for query in queries:
            while (error := spark.run(query)) and len(ended) < _RESTARTS:  # as an operator does
                ended.append(error)
    _judge(case, rows)
    during = ", ".join(f"{count} during a batch of the {name}" for name, count in sorted(amid.items()))
    masters = int(master_round >= 0)
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
    spark.wait_for(
        lambda: all(query.has("up") for query in queries) or any(query.ended() for query in queries), "both queries"
    )
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


def _is_replaced(cluster: RedisCluster, master: int) -> bool:
    return master not in cluster.masters()


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
