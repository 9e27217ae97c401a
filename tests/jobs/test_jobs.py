"""The jobs as a data engineer runs them: submitted, killed in the middle, started again, stopped; on both servers.

One history for each server, side by side: the sample is loaded, cleaned, aggregated and archived. Each job is killed
before its end, and the next process continues. Then each job is stopped. The tests check the results. The history has a
fixture for each killed job, so that each has a time limit of its own.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis

from tests.jobs.work import KEY, Running, Work, sample
from tests.trimming import nodes_of_one_entry
from tools.day_seed import first_seed
from tools.machine_time import machine_seconds
from tools.once import once
from tools.servers.server import KINDS, Server, skip_without_redis
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(5)]

SMALL = ("source.maxEntriesPerTrigger=150", "source.entriesPerPartition=75")
GOES_ON = "job.trigger=200ms"
# The archive trims to the entry, and all the time.
TRIM = ("trim.every=50ms",)
STOPPED = ("etl", "aggregate", "archive", "load")


@dataclass
class History:
    """Observations of the history on one server, during the jobs and at their end."""

    work: Work
    client: redis.Redis
    chance: random.Random
    loaded_when_killed: list[str] = field(default_factory=list)
    left_when_killed: list[str] = field(default_factory=list)
    archived_when_killed: set[str] = field(default_factory=set)
    all_ids: list[str] = field(default_factory=list)
    summaries: dict[str, dict[str, object]] = field(default_factory=dict)
    stops: dict[str, tuple[float, dict[str, object]]] = field(default_factory=dict)

    def ids(self, stream: str) -> list[str]:
        return [entry for entry, _ in self.client.xrange(stream)]

    def rows(self, stream: str) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(stream)]


Kinds = dict[str, "History"]


def kill_after(history: History, run: Running, job: str, batch: int) -> None:
    """Kill the job somewhere after this batch, and before it has ended."""
    run.wait_until(lambda: history.work.committed(job, batch), f"job {job} has not committed batch {batch}")
    time.sleep(history.chance.random() / 2)
    assert not run.ended(run.jobs - 1), run.output_file.read_text()[-3000:]
    run.kill()


def kill_load(history: History) -> None:
    work, client = history.work, history.client
    run = work.start(work.arguments("load", "sink.rowsPerSecond=200"))
    run.wait_until(lambda: client.xlen("flights") >= 100, "the job has not written 100 entries")
    run.kill()
    # The commands of the killed job may still be in the server's input. It closes a connection after it has read them.
    until(lambda: len(client.client_list()) == 1, "the server still has connections of the killed job")
    history.loaded_when_killed = history.ids("flights")


def finish_load_and_kill_etl(history: History) -> None:
    work = history.work
    run = work.start(work.arguments("load"), work.arguments("etl", *SMALL))
    kill_after(history, run, "etl", 1)
    history.summaries["load"] = work.summary("load")
    history.all_ids = history.ids("flights")


def finish_etl_and_kill_aggregate(history: History) -> None:
    work = history.work
    run = work.start(work.arguments("etl", *SMALL), work.arguments("aggregate", *SMALL))
    kill_after(history, run, "aggregate", 1)
    history.summaries["etl"] = work.summary("etl")


def finish_aggregate_and_kill_archive(history: History) -> None:
    work, client = history.work, history.client
    # Another group has acknowledged 300 entries, and one more is pending in it.
    client.xgroup_create("flights", "slow", "0")
    client.xreadgroup("slow", "other", {"flights": ">"}, 301)
    client.xack("flights", "slow", *history.all_ids[:300])
    run = work.start(work.arguments("aggregate", *SMALL), work.arguments("archive", *SMALL, *TRIM))
    kill_after(history, run, "archive", 2)
    history.summaries["aggregate"] = work.summary("aggregate")
    history.left_when_killed = history.ids("flights")
    history.archived_when_killed = set(work.parquet("archive")["id"].to_pylist())


def finish_archive_and_stop_each(history: History) -> None:
    work = history.work
    # As if these two had been killed just before the commit log: they run their last batch again.
    for job in ("etl", "aggregate"):
        work.forget_last_commit(job)
    # From here on the jobs do not end by themselves.
    last = [
        work.arguments("archive", *SMALL, *TRIM),
        *[work.arguments(job, *SMALL, GOES_ON) for job in STOPPED[:3]],
        work.arguments("load", "sink.rowsPerSecond=20", f"job.checkpoint={work.folder}/again", "sink.stream=again"),
    ]
    run = work.start(*last)
    for number, job in enumerate(STOPPED, start=1):
        run.wait_until(lambda number=number: run.ended(number - 1), f"the job before {job} has not ended")
        if job == "etl":
            history.summaries["archive"] = work.summary("archive")
        stop_in_a_batch(history, run, number, job)
    run.finish()


def stop_in_a_batch(history: History, run: Running, number: int, job: str) -> None:
    """Stop the job while it has something to do."""
    work, client = history.work, history.client
    client.xadd("flights", {**sample()[0], "carrier": "ZZ"})
    offsets = work.folder / "checkpoints" / job / "offsets"
    batches = len(list(offsets.glob("[0-9]*"))) if offsets.exists() else 0
    if job == "load":
        run.wait_until(lambda: client.xlen("again") > 3, "job load has written no more than 3 entries")
    else:
        run.wait_until(lambda: len(list(offsets.glob("[0-9]*"))) > batches, f"job {job} starts no batch")
    began = machine_seconds()
    if job == "aggregate":
        run.interrupt()
    else:
        run.stop()
    run.wait_until(lambda: run.ended(number) or run.process.poll() is not None, f"job {job} does not stop")
    history.stops[job] = (machine_seconds() - began, work.summary(job))


def on_each_server(histories: Kinds, stage: Callable[[History], None]) -> Kinds:
    """Run the next stage of each history, side by side."""
    with ThreadPoolExecutor(len(histories)) as side_by_side:
        list(side_by_side.map(stage, histories.values()))
    return histories


# Each stage has the time limit of the first test that needs it.


@pytest.fixture(scope="module")
def begun(servers_of_kinds: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    seed = first_seed()
    print(f"RSTREAM_SEED={seed}")
    with contextlib.ExitStack() as closing:
        histories = Kinds()
        for number, (kind, server) in enumerate(servers_of_kinds.items()):
            client = closing.enter_context(server.client(decode_responses=True))
            client.flushall()
            closing.enter_context(nodes_of_one_entry(server))
            work = closing.enter_context(Work(tmp_path_factory.mktemp(kind), server))
            histories[kind] = History(work, client, random.Random(seed + number))
        yield histories


@pytest.fixture(scope="module")
def load_killed(begun: Kinds) -> Kinds:
    return on_each_server(begun, kill_load)


@pytest.fixture(scope="module")
def etl_killed(load_killed: Kinds) -> Kinds:
    return on_each_server(load_killed, finish_load_and_kill_etl)


@pytest.fixture(scope="module")
def aggregate_killed(etl_killed: Kinds) -> Kinds:
    return on_each_server(etl_killed, finish_etl_and_kill_aggregate)


@pytest.fixture(scope="module")
def archive_killed(aggregate_killed: Kinds) -> Kinds:
    return on_each_server(aggregate_killed, finish_aggregate_and_kill_archive)


@pytest.fixture(scope="module")
def histories(archive_killed: Kinds) -> Kinds:
    return on_each_server(archive_killed, finish_archive_and_stop_each)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


@pytest.fixture
def history(kind: str, histories: dict[str, History]) -> History:
    return histories[kind]


def test_load_is_killed_in_the_middle(kind: str, load_killed: Kinds) -> None:
    assert 100 <= len(load_killed[kind].loaded_when_killed) < len(sample())


def test_etl_is_killed_after_load_has_ended(kind: str, etl_killed: Kinds) -> None:
    history = etl_killed[kind]
    assert history.summaries["load"]["left"] == 0
    assert len(history.all_ids) == len(sample())


def test_aggregate_is_killed_after_etl_has_ended(kind: str, aggregate_killed: Kinds) -> None:
    history = aggregate_killed[kind]
    assert history.summaries["etl"]["entries"] < len(sample()), "the first run has committed some batches"
    assert len(history.ids("flights:dead")) > 0


def test_archive_is_killed_after_aggregate_has_ended(kind: str, archive_killed: Kinds) -> None:
    history = archive_killed[kind]
    assert history.summaries["aggregate"]["entries"] < len(sample()), "the first run has committed some batches"
    assert 0 < len(history.archived_when_killed) < len(history.all_ids)


def test_a_killed_load_goes_on_where_it_was(history: History) -> None:
    """The stream holds the file's rows once, in the file's order."""
    before, flights = len(history.loaded_when_killed), sample()
    assert 100 <= before < len(flights)
    assert history.all_ids[:before] == history.loaded_when_killed
    told = history.summaries["load"]
    assert (told["entries"], told["loaded_before"], told["left"]) == (len(flights) - before, before, 0)
    rows = history.work.parquet("archive").sort_by([("timestamp", "ascending"), ("id", "ascending")])
    by_id = dict(zip(rows["id"].to_pylist(), rows["fields"].to_pylist(), strict=True))
    loaded = [dict(by_id[entry]) for entry in history.all_ids]
    assert [key(row) for row in loaded] == [key(row) for row in flights]


def test_a_killed_etl_leaves_each_row_and_each_dead_letter_once(history: History) -> None:
    flights = sample()
    departed = [row for row in flights if row["dep_time"] != "NA"]
    cancelled = [row for row in flights if row["dep_time"] == "NA"]
    rows = [row for row in history.work.parquet("flights").to_pylist() if row["carrier"] != "ZZ"]
    assert not (judgement := once(keys(departed), [tuple(str(row[name]) for name in KEY) for row in rows])), judgement
    letters = history.rows("flights:dead")
    assert not (judgement := once(keys(cancelled), keys(letters))), judgement
    assert {letter["dl.reason"] for letter in letters} == {"no departure time"}
    assert {letter["dl.id"] for letter in letters} < set(history.all_ids)
    assert history.summaries["etl"]["entries"] < len(flights), "the first run has committed some batches"


def test_a_killed_aggregate_appends_each_change_once(history: History) -> None:
    """Every entry of a group counts more flights than the one before; the last one counts all."""
    departed = [row for row in sample() if row["dep_time"] != "NA"]
    counted: dict[tuple[str, str], list[int]] = {}
    means: dict[tuple[str, str], float] = {}
    for row in history.rows("delays"):
        group = (row["carrier"], row["month"])
        counted.setdefault(group, []).append(int(row["flights"]))
        means[group] = float(row["mean_dep_delay"])
    of_late = [group for group in counted if group[0] == "ZZ"]
    assert all(ns == sorted(set(ns)) for group, ns in counted.items() if group not in of_late)
    minutes: dict[tuple[str, str], list[int]] = {}
    for row in departed:
        minutes.setdefault((row["carrier"], row["month"]), []).append(int(row["dep_delay"]))
    assert {group: ns[-1] for group, ns in counted.items() if group not in of_late} == {
        group: len(delays) for group, delays in minutes.items()
    }
    assert all(means[group] == pytest.approx(sum(delays) / len(delays)) for group, delays in minutes.items())


def test_a_killed_archive_has_each_entry_once_and_trims_nothing_else(history: History) -> None:
    ids = history.all_ids
    assert set(history.left_when_killed) | history.archived_when_killed >= set(ids), (
        "nothing was lost when it was killed"
    )
    assert len(history.archived_when_killed) < len(ids)
    archived = history.work.parquet("archive")["id"].to_pylist()
    assert not (judgement := once(ids, [one for one in archived if one in set(ids)])), judgement
    # The entry that group `slow` has yet to acknowledge, and all behind it, are still there.
    assert history.ids("flights")[: len(ids) - 300] == ids[300:]
    assert len(history.left_when_killed) - (len(ids) - 300) == history.summaries["archive"]["trimmed"]


@pytest.mark.parametrize("job", STOPPED)
def test_a_job_that_is_asked_to_stop_finishes_its_batch(history: History, job: str) -> None:
    """SIGTERM to spark-submit, SIGINT to all: exit code 0 (the history saw it), within the documented time, not cut."""
    seconds, told = history.stops[job]
    assert told["stopped"] is True
    assert "cut" not in told
    assert seconds < 30
    if job == "load":
        assert 0 < told["entries"] == len(history.ids("again")) < len(sample())
        assert told["left"] == len(sample()) - told["entries"]
    else:
        assert told["entries"] >= 1
        with history.work.server.client() as client:
            pending = client.xpending("flights", job)["pending"]
        # What was read last may be settled by the next run.
        assert pending <= told["entries"]


def key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def keys(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
    return [*map(key, rows)]
