"""Jobs that one spark-submit runs one after the other, for starting Spark takes longer than they do.

First dead letters go back, which needs no session; then all jobs and two wrong ones are checked; then, in a session of
their own, etl and aggregate are set up in other ways: the source types the columns, windows of event time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.connector.deadletter.making import fill, numbers
from tests.jobs.work import NEW_SESSION, PATIENCE, Running, Work
from tools.machine_time import wait_for_end
from tools.servers.server import KINDS, Server, running_engine, skip_without_redis

pytestmark = pytest.mark.spark

JOBS = ("load", "etl", "aggregate", "archive", "reprocess_dead_letters")
LETTERS = 60
# hour and minute of an entry, its carrier, its departure time.
ENTRIES = [
    ("10:05", "UA", "5"), ("10:40", "UA", "7"), ("10:50", "AA", "9"), ("11:20", "UA", "noon"), ("11:30", "UA", "1"),
    ("12:30", "AA", ""), ("10:59", "AA", "2"),
]  # fmt: skip


@dataclass
class Submitted:
    """What was submitted. works: by the kind of server."""

    run: Running
    works: dict[str, Work]
    redriven: Work
    checked: Work
    keys_before: list[bytes]

    @property
    def output(self) -> str:
        return self.run.output_file.read_text()

    def endings_of(self, job: str, check: bool) -> list[str]:
        """What the runs of a job ended with."""
        plan = enumerate(self.run.plan)
        return [self.run.ended(at) for at, words in plan if words[0] == job and ("--check" in words) is check]


@pytest.fixture(scope="module")
def submitted(
    engine_server: Server, servers_of_kinds: dict[str, Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Submitted]:
    with engine_server.client() as client:
        client.flushall()
    works = {kind: Work(tmp_path_factory.mktemp(kind), server) for kind, server in servers_of_kinds.items()}
    variants = []
    for work in works.values():
        fill_flights(work.server)
        variants += ways_of(work)
    fill(engine_server, LETTERS, into="gone:dead")
    redriven = Work(tmp_path_factory.mktemp("redriven"), engine_server)
    redrive = redriven.arguments(JOBS[-1], "letters.stream=gone:dead", "redrive.rate=100000")
    with running_engine() as another:
        checked = Work(tmp_path_factory.mktemp("checked"), another)
        with another.client() as client:
            for _ in range(7):
                client.xadd("flights", {"carrier": "UA"})
            client.xadd("flights:dead", {"carrier": "UA"})
            keys = sorted(client.keys())
        with redriven:
            run = redriven.start(redrive, *checks_of(checked), NEW_SESSION, *variants)
            run.wait_until(lambda: run.ended(run.jobs - 1), "the last job has not ended")
            wait_for_end(run.process, PATIENCE)
            yield Submitted(run, works, redriven, checked, keys)


def fill_flights(server: Server) -> None:
    with server.client() as client:
        client.flushall()
        for time, carrier, departed in ENTRIES:
            fields = {"carrier": carrier, "time_hour": f"2013-01-01T{time}:00", "dep_time": departed}
            client.xadd("flights", {name: value for name, value in fields.items() if value})


def ways_of(work: Work) -> list[list[str]]:
    """Other ways to set up etl and aggregate."""
    url = f"url={work.server.url}"
    typed = ("source.mode=DEADLETTER", "source.deadLetterStream=flights:unfit", 'table.partition_by=["carrier"]')
    of_entry = ("metadata.stream=stream", "metadata.entry_id=id", "metadata.timestamp=added_at")
    windows = ("columns.time_hour=TIMESTAMP", "aggregate.event_time=time_hour", "aggregate.window=1 hour")
    final = ("aggregate.watermark=10 minutes", "aggregate.emit=final", 'aggregate.keys=["carrier"]')
    values = ("aggregate.where=true", "aggregate.values.flights=count(*)", "source.maxEntriesPerTrigger=6")
    log = f"job.log={work.folder}/log"
    return [
        work.arguments("etl", url, *typed, *of_entry, log),
        work.arguments("aggregate", url, *windows, *final, *values, log, "job.name=hours"),
    ]


def checks_of(work: Work) -> list[list[str]]:
    """All jobs with `--check`, then two whose SQL is wrong, which only Spark can see."""
    url = f"url={work.server.url}"
    wrong = [
        work.arguments("etl", url, 'rule=[{reason = "late", when = "dep_tme > 3"}]'),
        work.arguments("aggregate", url, "aggregate.values.worst=max(nothing)"),
    ]
    return [[*words, "--check"] for words in (*[work.arguments(job, url) for job in JOBS], *wrong)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


@pytest.fixture
def work(kind: str, submitted: Submitted) -> Work:
    succeeded = ["0"] * len(submitted.works)
    assert submitted.endings_of("etl", False) == succeeded, submitted.output
    assert submitted.endings_of("aggregate", False) == succeeded, submitted.output
    return submitted.works[kind]


def test_dead_letters_go_back(submitted: Submitted) -> None:
    assert submitted.endings_of("reprocess_dead_letters", False) == ["0"], submitted.output
    moved = submitted.redriven.summary("reprocess_dead_letters")["moved"]
    assert (moved, numbers(submitted.redriven.server)) == (LETTERS, list(range(LETTERS)))


def test_check_looks_at_everything_and_starts_nothing(submitted: Submitted) -> None:
    ended = {job: submitted.endings_of(job, True) for job in JOBS}
    wrong = {job: ["0", "2"] for job in ("etl", "aggregate")}
    assert ended == {job: ["0"] for job in JOBS} | wrong, submitted.output
    said = " ".join(submitted.output.split())
    for told in (
        *[f"{job} would:" for job in JOBS],
        "waiting 7 entries",
        "group archive, consumer spark",
        "entries that every group has acknowledged",
        "flights:dead at ",
        "etl: [RSTREAM_CONFIG] [columns] or [[rule]]: [UNRESOLVED_COLUMN",
        "aggregate: [RSTREAM_CONFIG] [aggregate]: [UNRESOLVED_COLUMN",
    ):
        assert told in said
    with submitted.checked.server.client() as client:
        assert sorted(client.keys()) == submitted.keys_before
        assert client.xinfo_groups("flights") == []
    assert list(submitted.checked.folder.iterdir()) == []


def test_the_source_types_the_columns_of_an_etl(work: Work) -> None:
    """source.mode: what does not fit moves to the source's own dead-letter stream; the rules go on top of it."""
    told = work.summary("etl")
    assert (told["entries"], told["parquet"], told["dead"], told["moved_by_source"]) == (6, 5, 1, 1)
    assert sorted(work.parquet("flights")["dep_time"].to_pylist()) == [1, 2, 5, 7, 9]
    with work.server.client(decode_responses=True) as client:
        unfit = [fields for _, fields in client.xrange("flights:unfit")]
        dead = [fields for _, fields in client.xrange("flights:dead")]
    assert [(letter["dep_time"], letter["dl.reason"]) for letter in unfit] == [("noon", "decode")]
    assert [(letter["dl.reason"], letter["dl.stage"]) for letter in dead] == [("no departure time", "etl")]


def test_metadata_of_entries_are_columns_of_the_table(work: Work) -> None:
    """By stream and id, `rstream where --table` finds the row of an entry."""
    rows = {row["id"]: row for row in work.parquet("flights").to_pylist()}
    with work.server.client(decode_responses=True) as client:
        departed = {entry_id: fields.get("dep_time", "noon") for entry_id, fields in client.xrange("flights")}
    good = {entry_id: int(time) for entry_id, time in departed.items() if time != "noon"}
    assert {entry_id: row["dep_time"] for entry_id, row in rows.items()} == good
    assert {row["stream"] for row in rows.values()} == {"flights"}
    assert [round(row["added_at"].timestamp() * 1000) for row in rows.values()] == [int(i.split("-")[0]) for i in rows]


def test_a_query_has_a_name(work: Work) -> None:
    """Its group's, unless it is given one."""
    lines = [json.loads(line) for line in (work.folder / "log").read_text().splitlines()]
    assert list(dict.fromkeys(line["query"] for line in lines)) == ["etl", "hours"]


def test_windows_are_emitted_once_when_they_are_final(work: Work) -> None:
    """The watermark ends at 12:20, so the window of 12:00 is still open."""
    with work.server.client(decode_responses=True) as client:
        rows = [fields for _, fields in client.xrange("delays")]
    assert Counter((row["window_start"][11:16], row["carrier"], row["flights"]) for row in rows) == Counter([
        ("10:00", "UA", "2"), ("10:00", "AA", "2"), ("11:00", "UA", "2"),
    ])  # fmt: skip
    assert work.summary("aggregate")["groups"] == len(rows)
    assert rows[0]["window_end"][11:16] > rows[0]["window_start"][11:16]
