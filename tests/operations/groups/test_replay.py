"""`rstream replay`: a stopped query reads a part again with its checkpoint, and what that is refused for."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.admin import groups as guard
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.operations.console.incoming import link
from tests.operations.console.browser import form_to, replaced, wait_for_change
from tests.operations.console.process import running_console
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.driving import ALL, NEVER_AHEAD, add, drain, pending_count, read, reader, stop_all
from tools.servers.server import Server, skip_without_xnack

G = ("--group", "g")


class Stopped:
    """A query that has read all n entries in batches of ten, and was stopped when it had nothing to read."""

    def __init__(self, server: Server, client: redis.Redis, n: int, **options: str) -> None:
        self.server, self.options = server, options
        self.ids = add(client, n)
        one = self.start()
        self.checkpoint = one.initialOffset()
        while (end := one.latestOffset(self.checkpoint, ReadMaxRows(10))) != self.checkpoint:
            read(one, self.checkpoint, end)
            self.checkpoint = end
        stop_all()

    def start(self) -> StreamReader:
        return reader(self.server, limits=NEVER_AHEAD, **self.options)

    def resume(self) -> list[int]:
        """What it reads with its checkpoint."""
        return [n for batch in drain(self.start(), 10, self.checkpoint) for n in batch]


@pytest.fixture
def query(server: Server, client: redis.Redis) -> Stopped:
    return Stopped(server, client, 30)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--from", "ID10"], range(10, 30)),
        (["--from", "ID10", "--to", "ID14"], range(10, 15)),
        (["--from", "earliest"], range(30)),
        (["--from", "1h"], range(30)),
        (["--from=-5"], range(25, 30)),
        (["--from", "-10", "--to", "-5"], range(20, 25)),
        (["--from", "ID29", "--to", "latest"], range(29, 30)),
        (["--from", "latest"], range(0)),
    ],
)
def test_the_query_reads_the_part_again_and_then_what_is_new(
    query: Stopped, client: redis.Redis, rstream_json: RstreamJson, words: list[str], expected: range
) -> None:
    words = [query.ids[int(word[2:])] if word.startswith("ID") else word for word in words]
    position = client.xinfo_groups("s")[0]["last-delivered-id"]
    planned = rstream_json("replay", "s", *G, *words)
    done = rstream_json("replay", "s", *G, *words, "--yes")
    assert (planned["dry_run"], done["dry_run"]) == (True, False)
    counts = [[one["entries"], one["held"], one["last"]] for told in (planned, done) for one in told["streams"]]
    assert counts[0] == counts[1]
    assert (done["streams"][0]["entries"], done["streams"][0]["held"]) == (len(expected), 0)
    assert client.xinfo_groups("s")[0]["last-delivered-id"] == position
    add(client, 5, first=30)
    assert sorted(query.resume()) == [*expected, *range(30, 35)]
    assert pending_count(client) == 0


@pytest.mark.in_turn
def test_the_console_replays_too(server: Server, query: Stopped) -> None:
    with running_console(server.url, "--write") as console:
        browser = console.browser()
        page = browser.get(link("/group", stream="s", group="g")).text
        fields = replaced(form_to(page, "/plan", action="replay"), **{"from": query.ids[10], "to": query.ids[14]})
        planned = browser.post("/plan", fields)
        assert "Would let the query read again 5 entries." in planned.text
        browser.post("/changes", form_to(planned.text, "/changes"))
        assert "Lets the query read again 5 entries." in wait_for_change(browser, 1)
    assert sorted(query.resume()) == list(range(10, 15))


def test_what_it_prints(query: Stopped, rstream: Rstream) -> None:
    ran = rstream("replay", "s", *G, "--from", query.ids[10])
    assert ran.exit_code == 0
    assert "a plain table or stream has them twice" in ran.stdout
    assert f"rstream groups seek s --group g --to {query.ids[9]} --yes" in ran.stdout
    assert "dry run, nothing was changed; with --yes: returned 20 entries to the query" in ran.stdout
    assert query.resume() == []


def test_the_other_way_that_it_prints_reads_all_from_there_with_a_new_checkpoint(
    query: Stopped, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    [line] = [
        line for line in rstream_json("replay", "s", *G, "--from", query.ids[10])["then"] if "alternative" in line
    ]
    command = line.partition("(rstream ")[2].partition(",")[0]
    assert rstream(*command.split(" ")).exit_code == 0
    assert [n for batch in drain(query.start(), 10) for n in batch] == list(range(10, 30))


def test_a_second_replay_hands_nothing_over_twice(
    query: Stopped, rstream_json: RstreamJson, client: redis.Redis
) -> None:
    rstream_json("replay", "s", *G, "--from", query.ids[20], "--yes")
    [one] = rstream_json("replay", "s", *G, "--from", query.ids[15], "--yes")["streams"]
    assert (one["entries"], one["held"]) == (5, 10)
    assert sorted(query.resume()) == list(range(15, 30))
    assert pending_count(client) == 0


def test_released_entries_of_the_range_are_handed_over_as_the_dry_run_says(
    query: Stopped, rstream_json: RstreamJson, client: redis.Redis
) -> None:
    skip_without_xnack(client)
    rstream_json("replay", "s", *G, "--from", query.ids[20], "--yes")
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 2, query.ids[22], query.ids[23])
    words = ("replay", "s", *G, "--from", query.ids[20])
    told = [rstream_json(*words, *more)["streams"][0] for more in ((), ("--yes",))]
    assert [(one["entries"], one["held"]) for one in told] == [(2, 8), (2, 8)]


def test_a_replay_that_was_killed_amid_its_batch_is_read_again_whole(query: Stopped, rstream_json: RstreamJson) -> None:
    rstream_json("replay", "s", *G, "--from", query.ids[20], "--yes")
    one = query.start()
    end = one.latestOffset(query.checkpoint, ALL)
    assert sorted(read(one, query.checkpoint, end)) == list(range(20, 30))
    again = query.start()
    assert sorted(read(again, query.checkpoint, end)) == list(range(20, 30))
    assert drain(again, 10, end) == []


def test_a_query_that_lives_is_refused(
    query: Stopped, rstream_json: RstreamJson, rstream: Rstream, client: redis.Redis
) -> None:
    one = query.start()
    assert one.latestOffset(query.checkpoint, ALL) == query.checkpoint
    assert (
        "a query is running as consumer 'spark'"
        in rstream_json("replay", "s", *G, "--from", "1h", code=3)["refused"][0]
    )
    ran = rstream("replay", "s", *G, "--from", "1h", "--yes")
    assert (ran.exit_code, "RSTREAM_GROUP_IN_USE" in ran.stderr, pending_count(client)) == (1, True, 0)


def test_a_query_that_starts_meanwhile_is_handed_nothing(
    query: Stopped, rstream: Rstream, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its lease and the transaction."""
    honest = guard.transact

    def racing(*arguments: Any) -> Any:
        one = query.start()
        assert one.latestOffset(query.checkpoint, ALL) == query.checkpoint
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(guard, "transact", racing)
        ran = rstream("replay", "s", *G, "--from", query.ids[10], "--yes")
    assert (ran.exit_code, "RSTREAM_GROUP_IN_USE" in ran.stderr, pending_count(client)) == (1, True, 0), ran.output


def test_what_may_be_of_a_batch_that_spark_runs_again_is_refused_and_the_rest_is_named(
    server: Server, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    """The query was killed in its third batch."""
    ids = add(client, 50)
    one = reader(server, limits=NEVER_AHEAD)
    log = [one.initialOffset()]
    for _ in range(3):
        log.append(one.latestOffset(log[-1], ReadMaxRows(10)))
        read(one, log[-2], log[-1])
    one.latestOffset(log[-1], ReadMaxRows(0))
    log.append(one.latestOffset(log[-1], ReadMaxRows(10)))
    stop_all()
    ran = rstream("replay", "s", *G, "--from", ids[5], "--yes")
    assert (ran.exit_code, "may belong to a batch that Spark runs again by itself" in ran.stderr) == (1, True), (
        ran.output
    )
    committed = ran.stderr.rpartition("--to ")[2].partition(")")[0]
    assert committed in ids[:30]
    handed = rstream_json("replay", "s", *G, "--from", ids[5], "--to", committed, "--yes")["streams"][0]["entries"]
    again = reader(server, limits=NEVER_AHEAD)
    found = read(again, log[-2], log[-1]) + [n for batch in drain(again, 10, log[-1]) for n in batch]
    assert sorted(found) == sorted([*range(5, 5 + handed), *range(30, 50)])
    assert pending_count(client) == 0


@pytest.mark.parametrize("options", [{"noAck": "true"}])
def test_a_query_that_reads_nothing_it_is_handed_is_refused(
    server: Server, client: redis.Redis, rstream: Rstream, options: dict[str, str]
) -> None:
    Stopped(server, client, 20, **options)
    ran = rstream("replay", "s", *G, "--from", "1h", "--yes")
    assert (ran.exit_code, "with noAck=true" in ran.stderr) == (1, True), ran.output
    assert pending_count(client) == 0


def test_a_group_without_a_query_or_with_several(
    query: Stopped, client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson
) -> None:
    client.xgroup_create("s", "h", id="0")
    ran = rstream("replay", "s", "--group", "h", "--from", "1h")
    assert (ran.exit_code, "no query has committed entries" in ran.stderr) == (3, True)
    client.xgroup_createconsumer("s", "g", "other")
    client.set("rstream:committed:{s}:g:other", f"{query.ids[-1]} 3.x")
    ran = rstream("replay", "s", *G, "--from", "1h")
    assert (ran.exit_code, "Name one: --consumer 'other'" in ran.stderr) == (3, True)
    assert rstream_json("replay", "s", *G, "--from", "1h", "--consumer", "spark")["streams"][0]["query"] == "spark"
