"""`rstream trim --acked`: what all groups have acknowledged is removed, and nothing else, also on a full server."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import redis

from spark_streams.connector.keys import retry_stream
from spark_streams.operations.groups import trim_acknowledged as trim
from tests.full_server import full
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.driving import ALL, NEVER_AHEAD, add, drain, read, reader, stop_all
from tools.sending import before_sending
from tools.servers.server import Server


def numbers(client: redis.Redis, stream: str = "s") -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange(stream)]


def finished(client: redis.Redis, group: str, delivered: int, acknowledged: range) -> list[str]:
    """A group that has received so many entries from the first one, and has acknowledged some of them."""
    client.xgroup_create("s", group, "0")
    [[_, entries]] = client.xreadgroup(group, "c", {"s": ">"}, count=delivered)
    ids = [entry for entry, _ in entries]
    client.xack("s", group, *[ids[n] for n in acknowledged])
    return ids


def test_the_slowest_group_decides_and_a_dry_run_changes_nothing(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    add(client, 100)
    ids = finished(client, "fast", 90, range(90))
    finished(client, "slow", 40, range(40))
    [planned] = rstream_json("trim", "s", "--acked")["streams"]
    assert (planned["acknowledged"], planned["removed"], planned["needed_by"]) == (40, 0, "slow")
    assert planned["bytes"] > 0
    assert client.xlen("s") == 100
    [done] = rstream_json("trim", "s", "--acked", "--yes")["streams"]
    assert (done["removed"], done["needed"]) == (40, f"{ids[39].split('-')[0]}-{int(ids[39].split('-')[1]) + 1}")
    assert numbers(client) == list(range(40, 100))
    assert "removed 0 entries of 1 stream" in rstream("trim", "--acked", "--yes").stdout


def test_pending_entries_stay(client: redis.Redis, rstream_json: RstreamJson) -> None:
    """Also in the midst of acknowledged ones, and those that a dead consumer holds."""
    add(client, 100)
    finished(client, "g", 100, range(30))
    finished(client, "h", 100, range(100))
    [done] = rstream_json("trim", "--acked", "--yes")["streams"]
    assert (done["removed"], numbers(client)) == (30, list(range(30, 100)))
    client.xack("s", "g", *[entry for entry, _ in client.xrange("s", count=50)][20:])
    rstream_json("trim", "--acked", "--yes")
    left = numbers(client)
    assert left[:20] == list(range(30, 50)), "pending"
    assert left in ([*range(30, 50), *range(80, 100)], list(range(30, 100))), "XTRIM ACKED, if the server has it"


def test_a_stream_without_groups_stays_whole(client: redis.Redis, rstream: Rstream, rstream_json: RstreamJson) -> None:
    add(client, 10)
    add(client, 10, "t")
    client.xgroup_create("t", "g", "$")
    ran = rstream_json("trim", "--acked", "--yes")
    assert [one["stream"] for one in ran["streams"]] == ["t"]
    assert "all entries stay of 1 stream without a group: 's'" in ran["then"]
    assert (client.xlen("s"), client.xlen("t")) == (10, 0)


@pytest.mark.parametrize("page", [1, 7, 150, 20_000])
def test_pages_remove_the_same(
    client: redis.Redis, rstream_json: RstreamJson, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages smaller than a node remove nothing by themselves: the last XTRIM removes it."""
    monkeypatch.setattr(trim, "PAGE", page)
    add(client, 1000)
    finished(client, "g", 950, range(905))
    [done] = rstream_json("trim", "s", "--acked", "--yes")["streams"]
    assert (done["removed"], numbers(client)) == (905, list(range(905, 1000)))


@pytest.mark.parametrize("no_ack", ["true", "false"])
def test_what_a_query_has_not_committed_stays_and_its_next_start_finds_no_loss(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, no_ack: str
) -> None:
    """Between batches, in the midst of one, and after it was stopped; with noAck the group stands at the commit."""
    options = {"noAck": no_ack, "startingOffsets": "earliest"}
    add(client, 60)
    one = reader(server, limits=NEVER_AHEAD, **options)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    assert len(read(one, start, first)) == 60
    rstream_json("trim", "--acked", "--yes")
    assert client.xlen("s") == 60, "the batch is not committed"
    add(client, 20, first=60)
    second = one.latestOffset(first, ALL)  # Spark has committed the first batch
    one.batches.worker.wait()
    rstream_json("trim", "--acked", "--yes")
    assert numbers(client) == list(range(60, 80))
    stop_all()  # in the midst of the second batch
    again = reader(server, limits=NEVER_AHEAD, **options)
    assert read(again, first, second) == list(range(60, 80))
    assert again.latestOffset(second, ALL) == second
    again.stop()
    rstream_json("trim", "--acked", "--yes")
    add(client, 5, first=80)
    assert drain(reader(server, limits=NEVER_AHEAD, **options), start=second) == [list(range(80, 85))]


def test_entries_that_wait_for_a_retry_and_dead_letters_stay(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    """A group of an alarm that has read all dead letters does not make them superfluous."""
    letters = {"mode": "DEADLETTER", "deadLetterStream": "letters"}
    for value in ("0", "bad", "2"):
        client.xadd("s", {"n": value})
    client.xgroup_create("letters", "alarm", "0", mkstream=True)
    assert drain(reader(server, **letters, retryDelay="1h")) == [[0, 2]]
    waiting = retry_stream("s", "g", 1)
    assert client.xlen(waiting) == 1
    stop_all()
    client.xadd("s", {"n": "worse"})
    client.xgroup_create("s", "h", "0")
    one = reader(server, **{**letters, "group": "h"})
    drain(one)
    [[_, read_letters]] = client.xreadgroup("alarm", "c", {"letters": ">"})
    client.xack("letters", "alarm", *[entry for entry, _ in read_letters])
    stop_all()
    ran = rstream("trim", "--acked", "--yes")
    assert ran.exit_code == 0
    assert "1 dead-letter stream of * left out: 'letters'" in ran.stderr
    assert (client.xlen(waiting), client.xlen("letters")) == (1, 2)
    assert client.xlen("s") == 1, "group g has not read the last entry"


def test_a_full_server_has_memory_afterwards(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    """XTRIM needs no memory."""
    client.xadd("s", {"n": 0, "x": "x" * 600_000})
    add(client, 10, first=1)
    finished(client, "g", 5, range(5))
    with full(server):
        assert "RSTREAM_SERVER_FULL" in rstream("add", "s", "n=11").stderr
        assert "the server uses " in rstream("trim", "--acked").stdout
        [done] = rstream_json("trim", "--acked", "--yes")["streams"]
    assert (done["removed"], numbers(client)) == (5, list(range(5, 11)))


def test_what_it_says_if_nothing_can_be_removed(client: redis.Redis, rstream: Rstream) -> None:
    add(client, 10)
    client.xgroup_create("s", "g", "0")
    ran = rstream("trim", "s", "--acked")
    assert "the groups in column `needed by` have not finished any entry" in ran.stdout
    [command] = re.findall("rstream (groups delete.*)", ran.stdout)
    assert "dry run" in rstream(*command.replace("STREAM", "s").replace("GROUP", "g").split()).stdout
    assert "dry run, nothing was changed; with --yes: removed 0 entries of 1 stream\n" in ran.stdout
    assert rstream("trim", "s").exit_code == 2
    assert "RSTREAM_STREAM_MISSING" in rstream("trim", "nosuch", "--acked", "--yes").stderr


def test_a_lag_that_the_server_does_not_know(client: redis.Redis, rstream_json: RstreamJson) -> None:
    """It is no reason to keep entries, and those that are removed are counted."""
    ids = add(client, 10)
    finished(client, "g", 5, range(5))
    client.xdel("s", ids[7])
    [planned] = rstream_json("trim", "s", "--acked")["streams"]
    assert (planned["acknowledged"], planned["bytes"] > 0) == (5, True)
    [done] = rstream_json("trim", "s", "--acked", "--yes")["streams"]
    assert (done["removed"], numbers(client)) == (5, [5, 6, 8, 9])


@pytest.mark.parametrize(
    ("acknowledged", "deleted"),
    [(range(1, 1000), ()), (range(999), ()), ([*range(1), *range(2, 1000)], ()), (range(500, 1000), (10, 600))],
    ids=["the first is pending", "the last is pending", "the second is pending", "half, and two were deleted"],
)
def test_a_dry_run_promises_what_is_removed(
    client: redis.Redis, rstream_json: RstreamJson, acknowledged: Sequence[int], deleted: Sequence[int]
) -> None:
    """Entries may be pending among acknowledged ones, in two groups, and be deleted from the stream."""
    ids = add(client, 1100)
    finished(client, "g", 1000, acknowledged)  # type: ignore[arg-type]
    finished(client, "h", 1050, range(1050))
    client.xdel("s", *[ids[n] for n in deleted]) if deleted else None
    [planned] = rstream_json("trim", "s", "--acked")["streams"]
    [done] = rstream_json("trim", "s", "--acked", "--yes")["streams"]
    assert planned["acknowledged"] == done["removed"]


def test_what_is_delivered_after_the_dry_run_stays(client: redis.Redis, rstream_json: RstreamJson) -> None:
    """With the bound of the dry run; without it, it is removed."""
    add(client, 100)
    finished(client, "g", 30, range(30))
    planned = rstream_json("trim", "s", "--acked")
    [[_, entries]] = client.xreadgroup("g", "c", {"s": ">"}, count=20)
    client.xack("s", "g", *[entry for entry, _ in entries])
    [done] = rstream_json("trim", "s", "--acked", *planned["bounds"], "--yes")["streams"]
    assert (planned["streams"][0]["acknowledged"], done["removed"]) == (30, 30)
    [done] = rstream_json("trim", "s", "--acked", "--yes")["streams"]
    assert done["removed"] == 20


def test_what_another_client_removes_meanwhile_is_not_counted(client: redis.Redis, rstream_json: RstreamJson) -> None:
    """Its entries have left the stream, too."""
    ids = add(client, 10)
    finished(client, "g", 4, range(4))
    with before_sending(b"XTRIM", act=lambda *_: client.xdel("s", *ids[5:8]), times=1):
        [done] = rstream_json("trim", "--acked", "--yes")["streams"]
    assert (done["removed"], numbers(client)) == (4, [4, 8, 9])


def _made(client: redis.Redis, ids: Sequence[str]) -> None:
    client.xgroup_create("s", "late", 0)


def _set_back(client: redis.Redis, ids: Sequence[str]) -> None:
    client.xgroup_setid("s", "g", ids[1])


def _given_again(client: redis.Redis, ids: Sequence[str]) -> None:
    """As `rstream replay` does."""
    client.execute_command("XCLAIM", "s", "g", "c", 0, ids[2], "FORCE", "JUSTID")


@pytest.mark.parametrize("does", [_made, _set_back, _given_again])
def test_a_group_that_comes_to_need_entries_amid_the_trim_is_named(
    client: redis.Redis, rstream: Rstream, does: Callable[[redis.Redis, Sequence[str]], None]
) -> None:
    """No command of a server trims only if the groups are as they were read, and WATCH does not notice XGROUP."""
    ids = add(client, 10)
    finished(client, "g", 5, range(5))
    with before_sending(b"XTRIM", act=lambda *_: does(client, ids), times=1):
        ran = rstream("trim", "s", "--acked", "--yes")
    assert (ran.exit_code, client.xlen("s")) == (1, 5)
    group = "late" if does is _made else "g"
    assert f"group '{group}' of stream 's' was created, set back or given entries again" in ran.stderr
    assert "5 entries" in ran.stderr
