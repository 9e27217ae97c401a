"""The driver is killed at a named point of a micro-batch, entries arrive while it is down, and it is started again.

One round kills one Spark. Its queries, each with its own streams, group and kill point, run to their points and stand
still there; then the whole job gets SIGKILL. The second job continues from the checkpoints and drains.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.limits import LIMITS
from spark_streams.operations.verify.history import Added, History, Place, Report, Value, check_history
from tools.chaos.job import Job
from tools.chaos.producer import Producer
from tools.chaos.query import SINKS, Fault, Query, into_a_stream
from tools.chaos.scene import gather, pending

# name: (kill point, kind of files, startingOffsets). With `latest`, and with claims, the kill is in batch 0.
POINTS = {
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


OTHER_GROUP = "other"


@dataclass
class Killed:
    """Case of one query.

    before: entries older than the start of a query with `latest`; claimed: entries of a dead consumer of the group;
    acknowledged_by_others: entries that another group acknowledged; at_kill: pending entries at the kill; logged,
    committed: the last batch in each log at the kill.
    """

    query: Query
    producer: Producer
    streams: list[str]
    before: set[Place] = field(default_factory=set)
    claimed: set[Place] = field(default_factory=set)
    at_kill: list[Place] = field(default_factory=list)
    logged: int = -1
    committed: int = -1
    acknowledged_by_others: set[Place] = field(default_factory=set)
    history: History = field(default_factory=History)
    report: Report = field(default_factory=Report)

    @property
    def batch(self) -> int:
        """Batch of the kill point."""
        return self.query.fault.batch if self.query.fault else self.committed + 1


def run(
    folder: Path, servers: Mapping[str, str], seed: int, points: Iterable[str] = POINTS, sink: str | None = None
) -> dict[str, Killed]:
    """Run one round. Return the cases by `point, kind`.

    servers: kind → URL; sink: `stream`, or `attempts` for any kind of files; None: selected by the seed.
    """
    random_, points = random.Random(seed), list(points)
    cases = {
        f"{point}, {kind}": _case(folder, point, kind, url, random_, sink or random_.choice(SINKS))
        for point in points
        for kind, url in servers.items()
    }
    held_tasks = sum(POINTS[point][0] in ("reading", "writing") for point in points) * len(servers)
    with Job(folder, [case.query for case in cases.values()], f"local[{4 + held_tasks}]") as job:
        for case in cases.values():
            if case.query.options["startingOffsets"] == "latest":
                job.wait_for(partial(_start_is_stored, case), f"the server to store the start of {case.query.name}")
                if case.query.fault and case.query.fault.stage != "started":
                    _add(case, random_)
                    case.query.sign("go").touch()
        for case in cases.values():
            job.wait_for(partial(_is_ready, case), f"the kill point of {case.query.name}")
        for case in cases.values():
            _add(case, random_)
            case.at_kill = [place for stream in case.streams for place in pending(case.query, stream)]
            case.logged, case.committed = case.query.logged(), case.query.committed()
        job.kill()
    for case in cases.values():
        if case.query.fault is None:
            _lose_the_last_commit(case)
        _add(case, random_)
    # The restart may use other limits. A batch must hold at least 120 entries: so many may be reserved ahead, and the
    # test expects them in the next batch.
    restarted = [
        replace(
            case.query, fault=None, trigger="now",
            options={**case.query.options, "maxEntriesPerTrigger": str(random_.randint(120, 800))},
        )
        for case in cases.values()
    ]  # fmt: skip
    with Job(folder, restarted) as job:
        job.finish()
    for case in cases.values():
        case.history = gather(case.query, _expected(case))
        case.history.unordered = case.claimed
        case.report = check_history(case.history)
        case.report.lost += _missing_for_others(case)
    return cases


def _case(folder: Path, point: str, kind: str, url: str, random_: random.Random, sink: str) -> Killed:
    stage, files, starting = POINTS[point]
    name = f"{point} {kind}".replace(" ", "-")
    streams = [f"{name}:{n}" for n in range(random_.randint(1, 2))]
    options = {
        "streams": ",".join(streams),
        "group": "g",
        "startingOffsets": starting,
        "maxEntriesPerTrigger": str(random_.randint(40, 90)),
        "entriesPerPartition": str(random_.choice([15, 40, 1000])),
    }
    if random_.random() < 0.3:
        options["maxBytesPerTrigger"] = random_.choice(["3kb", "1mb"])
    elif random_.random() < 0.3:
        options["maxEntriesPerTrigger"] = json.dumps({"*": random_.randint(30, 60)})
    claims = point == "logged with claims"
    if claims:
        options["claimIdle"] = "1ms"
    if stage and random_.random() < 0.6:  # with a lost commit entry, the entries of the batch would be trimmed
        options["onCommit"] = random_.choice(["trim", "delete"])
    batch = 0 if starting == "latest" or claims else 1 if stage == "looked" else random_.randint(1, 2)
    fault = Fault("hold", batch, stage, rows=random_.randint(1, 15)) if stage else None
    ahead = random_.choice([1, LIMITS.prefetch_entries])
    query = Query(name, str(folder / name), url, options, files, fault=fault, ahead=ahead)
    if sink == "stream":
        query = into_a_stream(query, random_)
    case = Killed(query, Producer(url), streams)
    for stream in streams if stage else ():
        case.producer.client.xgroup_create(stream, OTHER_GROUP, "0", mkstream=True)
    if starting == "latest":
        for stream in streams:
            case.before |= _places(case.producer.add(stream, 5))
    else:
        _add(case, random_, at_least=200)
    if stage:
        _read_by_others(case, random_)
    if claims:
        client = case.producer.client
        for stream in streams:
            client.xgroup_create(stream, query.group, id="0")
            read = client.xreadgroup(query.group, "rogue", {stream: ">"}, count=random_.randint(5, 20))
            case.claimed |= {(stream, entry) for _, entries in read for entry, _ in entries}
    return case


def _read_by_others(case: Killed, random_: random.Random) -> None:
    """Read some entries in another group, and acknowledge some of them."""
    client = case.producer.client
    for stream in case.streams:
        for _, entries in client.xreadgroup(OTHER_GROUP, "c", {stream: ">"}, count=random_.randint(1, 150)):
            acknowledged = [entry for entry, _ in entries if random_.random() < 0.8]
            case.acknowledged_by_others |= {(stream, entry) for entry in acknowledged}
            if acknowledged:
                client.xack(stream, OTHER_GROUP, *acknowledged)


def _missing_for_others(case: Killed) -> list[Value]:
    """Return values that the other group has not acknowledged, and that its stream does not hold any more."""
    present = {(stream, entry) for stream in case.streams for entry, _ in case.producer.client.xrange(stream)}
    return [
        entry.value
        for entry in case.producer.added
        if entry.place and entry.place not in present | case.acknowledged_by_others
    ]


def _add(case: Killed, random_: random.Random, at_least: int = 10) -> None:
    for stream in case.streams:
        case.producer.add(stream, random_.randint(at_least, at_least + 60))


def _places(added: Iterable[Added]) -> set[Place]:
    return {entry.place for entry in added if entry.place is not None}


def _start_is_stored(case: Killed) -> bool:
    """Whether a key, or from the first trigger on the group, stores the start."""
    query, client = case.query, case.producer.client
    return all(
        client.exists(key_beside(stream, "first", query.group, "spark"))
        or any(group["name"] == query.group for group in client.xinfo_groups(stream))
        for stream in case.streams
    )


def _is_ready(case: Killed) -> bool:
    if case.query.fault is not None:
        return case.query.held()
    # All entries are read, written and acknowledged; the query is idle.
    client = case.producer.client
    return case.query.committed() >= 0 and all(
        group["pending"] == 0 and group["last-delivered-id"] == client.xinfo_stream(stream)["last-generated-id"]
        for stream in case.streams
        for group in client.xinfo_groups(stream)
    )


def _lose_the_last_commit(case: Killed) -> None:
    """Delete the last entry of the commit log, as a file system may lose it."""
    commits = case.query.path / "checkpoint" / "commits"
    last = case.query.committed()
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    case.committed = case.query.committed()


def _expected(case: Killed) -> list[Added]:
    return [entry for entry in case.producer.added if entry.place not in case.before]
