"""`rstream groups prune --hold`: groups that hold entries back are listed, and forgotten with --yes."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
import redis

from spark_streams.connector.errors import GroupForgottenError
from spark_streams.connector.keys import forgotten_key
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.lease import Processes
from spark_streams.operations.groups import unused
from tests.holding import OLD, hold
from tests.operations.groups.conftest import Rstream, RstreamJson
from tools.driving import NEVER_AHEAD, another_reader
from tools.sending import before_sending
from tools.servers.server import Server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused, "SHORTEST_MS", 1)


def test_a_dry_run_lists_what_each_group_holds(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    hold(client, since=OLD)
    planned = rstream_json("groups", "prune", "--hold", "--idle", "50ms")
    listed = {one["group"]: (one["entries"], one["position"], one["removed"]) for one in planned["streams"]}
    assert listed == {"slow": (8, f"{OLD + 3}-0", 0), "slower": (9, f"{OLD + 1}-0", 0)}
    assert all(one["bytes"] > 0 and one["idle_ms"] >= 50 for one in planned["streams"])
    assert planned["bounds"] == ["--only", "s", "slow", f"{OLD + 3}-0", "--only", "s", "slower", f"{OLD + 1}-0"]
    assert (client.xlen("s"), len(client.xinfo_groups("s"))) == (10, 3)
    assert not client.keys("rstream:*")
    said = rstream("groups", "prune", "--hold", "--idle", "50ms").stdout
    assert "dry run, nothing was changed; with --yes: forgot 2 groups" in said


def test_yes_records_the_groups_and_removes_what_only_they_held(
    server: Server, client: redis.Redis, rstream_json: RstreamJson
) -> None:
    hold(client, since=OLD)
    done = rstream_json("groups", "prune", "--hold", "--idle", "50ms", "--group", "slower", "--yes")
    assert [(one["group"], one["removed"]) for one in done["streams"]] == [("slower", 2)]
    assert client.xlen("s") == 8
    assert (client.exists(forgotten_key("s", "slower")), client.exists(forgotten_key("s", "slow"))) == (1, 0)
    done = rstream_json("groups", "prune", "--hold", "--idle", "50ms", "--yes")
    assert sum(one["removed"] for one in done["streams"]) == 8
    back = another_reader(server, group="slow")
    with pytest.raises(GroupForgottenError):
        back.initialOffset()
    back.stop()
    rstream_json("groups", "delete", "s", "--group", "slow", "--even-active", "--yes")
    assert not client.exists(forgotten_key("s", "slow")), "the record goes with the group"


def test_a_group_in_use_is_not_listed_or_not_forgotten(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream
) -> None:
    hold(client, since=OLD)
    assert rstream_json("groups", "prune", "--hold", "--idle", "1h")["streams"] == []
    running = another_reader(server, group="slow")
    running.initialOffset()
    ran = rstream("groups", "prune", "--hold", "--idle", "50ms", "--group", "slow", "--yes")
    assert (ran.exit_code, "left out: group 'slow' of stream 's' is in use now" in ran.stdout) == (3, True)
    assert client.xlen("s") == 10
    running.stop()


@pytest.mark.parametrize(
    ("what", "no_ack"),
    [("commits", "true"), ("finds nothing to read", "true"), ("finds nothing to read", "false")],
)
def test_a_query_that_ran_a_moment_ago_is_active_though_it_read_nothing_from_its_group(
    server: Server, client: redis.Redis, rstream_json: RstreamJson, what: str, no_ack: str
) -> None:
    """A commit with noAck reads nothing from the group, and neither does a run that finds nothing."""
    hold(client, since=OLD)
    first = another_reader(server, group="new", noAck=no_ack, limits=NEVER_AHEAD)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(4))
    if what == "finds nothing to read":
        first.stop()
    time.sleep(0.4)
    query = first if what == "commits" else another_reader(server, group="new", noAck=no_ack, limits=NEVER_AHEAD)
    assert query.latestOffset(end, ReadMaxRows(0)) == end
    query.stop()
    command = ("groups", "prune", "--hold", "--idle", "300ms", "--group", "new")
    assert rstream_json(*command, "--yes")["streams"] == []
    time.sleep(0.4)
    assert [one["group"] for one in rstream_json(*command)["streams"]] == ["new"], "some time later it is idle"


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_groups_behind_one_in_use_are_forgotten_and_it_is_named(
    client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream, yes: list[str]
) -> None:
    """Its query runs, and reads nothing. If all are in use, the command ends with 3."""
    hold(client, since=OLD)
    lease = lease_key("s", "slow", "spark")
    client.set(lease, json.dumps({**Processes().this(), "space": "another machine"}))
    words = ("groups", "prune", "--hold", "--idle", "50ms")
    done = rstream_json(*words, *yes)
    assert [one["group"] for one in done["streams"]] == ["slower"]
    assert done["refused"] == ["group 'slow' of stream 's' is in use now, and is not forgotten"]
    assert client.exists(forgotten_key("s", "slower")) == len(yes)
    last = rstream(*words, "--group", "slow", *yes)
    assert (last.exit_code, "left out: group 'slow' of stream 's' is in use now" in last.stdout) == (3, True)
    assert client.exists(forgotten_key("s", "slow")) == 0


@pytest.mark.parametrize("consumer", ["spark", "other"])
def test_a_group_that_is_used_again_meanwhile_hinders_no_other(
    client: redis.Redis, rstream_json: RstreamJson, consumer: str
) -> None:
    """By any consumer: one that is idle beside it does not make the group unused."""
    hold(client, since=OLD)
    read = partial(client.xreadgroup, "slow", consumer, {"s": ">"})
    with before_sending(b"SCAN", b"rstream:lease:*", act=lambda *_: read(), times=1):
        done = rstream_json("groups", "prune", "--hold", "--idle", "50ms", "--yes")
    assert [one["group"] for one in done["streams"]] == ["slower"]
    assert len(done["refused"]) == 1
