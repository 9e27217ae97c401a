"""`rstream groups seek` and `create`: the dry run says what the real one reports, and lag stays right."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.keys import origin_field, origins_key
from tests.operations.groups.conftest import Rstream, RstreamJson


@pytest.fixture
def orders(client: redis.Redis) -> list[str]:
    """Twenty entries, of which group g was given ten; three of these are acknowledged."""
    ids = [str(client.xadd("orders", {"n": n}, id=f"{1_000 + n}-1")) for n in range(20)]
    client.xgroup_create("orders", "g", id="0")
    client.xreadgroup("g", "bob", {"orders": ">"}, count=10)
    client.xack("orders", "g", *ids[:3])
    return ids


def group(client: redis.Redis, stream: str = "orders") -> dict[str, Any]:
    [found] = client.xinfo_groups(stream)
    return dict(found)


def next_ids(client: redis.Redis) -> list[str]:
    """The ids that the group is given next."""
    found = client.xreadgroup("g", "reader", {"orders": ">"})
    return [entry for entry, _ in found[0][1]] if found else []


@pytest.mark.parametrize(
    ("to", "again", "pending", "skipped", "first"),
    [
        ("earliest", 10, 7, 0, 0),
        ("latest", 0, 0, 10, None),
        ("1004-1", 5, 5, 0, 5),
        ("1014-1", 0, 0, 5, 15),
        ("-4", 4, 4, 0, 6),
        ("-100", 10, 7, 0, 0),
        ("+3", 0, 0, 3, 13),
        ("+0", 0, 0, 0, 10),
        ("+100", 0, 0, 10, None),
        ("1970-01-01T00:00:01.012", 0, 0, 2, 12),
        ("1002", 8, 7, 0, 2),
    ],
)
def test_seek_says_what_it_would_do_and_does_it(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson,
    to: str, again: int, pending: int, skipped: int, first: int | None,
) -> None:  # fmt: skip
    words = ("groups", "seek", "orders", "--group", "g", f"--to={to}", "--even-active")
    planned = rstream_json(*words)
    assert group(client)["last-delivered-id"] == orders[9]
    done = rstream_json(*words, "--yes")
    assert (planned["dry_run"], done["dry_run"], planned["streams"]) == (True, False, done["streams"])
    [one] = done["streams"]
    assert (one["read_again"], one["pending_again"], one["skipped"]) == (again, pending, skipped)
    expected = [] if first is None else orders[first:]
    assert group(client)["lag"] == one["lag"] == len(expected)
    assert next_ids(client) == expected


def test_a_lag_stays_right_behind_entries_that_were_trimmed_or_deleted(
    client: redis.Redis, orders: list[str], rstream_json: RstreamJson
) -> None:
    client.xtrim("orders", minid="1003-1", approximate=False)
    client.xdel("orders", "1008-1", "1015-1")
    [one] = rstream_json("groups", "seek", "orders", "--group", "g", "--to", "1005-1", "--yes", "--even-active")[
        "streams"
    ]
    assert (one["read_again"], one["pending_again"]) == (3, 4)  # a deleted one is pending still
    assert next_ids(client) == [*orders[6:8], *orders[9:15], *orders[16:]]
    assert one["lag"] == 12


def test_what_lies_above_all_that_there_was_is_refused(
    client: redis.Redis, orders: list[str], rstream: Rstream
) -> None:
    for to, why in (("1019-2", "the last entry of stream 'orders' is 1019-1"), ("2999-01-01", "in the future")):
        ran = rstream("groups", "seek", "orders", "--group", "g", "--to", to, "--yes", "--even-active")
        assert (ran.exit_code, why in ran.stderr) == (1, True), ran.stderr
    assert group(client)["last-delivered-id"] == orders[9]


@pytest.mark.parametrize("to", ["yesterday", "5-x", "99999999999999999999999-1", "3 weeks", ""])
def test_what_is_no_position_is_wrong_usage(orders: list[str], rstream: Rstream, to: str) -> None:
    ran = rstream("groups", "seek", "orders", "--group", "g", f"--to={to}")
    assert ran.exit_code == 2, ran.output


def test_a_time_ago_is_by_the_server_s_clock(client: redis.Redis, rstream_json: RstreamJson) -> None:
    now = int(client.time()[0]) * 1000
    ids = [str(client.xadd("orders", {"n": n}, id=f"{now - (10 - n) * 60_000}-0")) for n in range(10)]
    client.xgroup_create("orders", "g", id="$")
    [one] = rstream_json("groups", "seek", "orders", "--group", "g", "--to", "270s", "--yes")["streams"]
    assert one["read_again"] == 4
    assert next_ids(client) == ids[6:]
    when = datetime.datetime.fromtimestamp((now - 240_000) / 1000, datetime.UTC).isoformat()
    assert (
        rstream_json("groups", "seek", "orders", "--group", "g", "--to", when, code=3)["streams"][0]["position"]
        < ids[6]
    )


def test_several_streams_and_patterns_at_once(client: redis.Redis, rstream_json: RstreamJson, rstream: Rstream) -> None:
    for name in ("a:1", "a:2", "a:3", "b"):
        client.xadd(name, {"n": 1}, id="1-1")
    for name in ("a:1", "a:2", "b"):
        client.xgroup_create(name, "g", id="0")
    told = rstream_json("groups", "seek", "a:*", "b", "--group", "g", "--to", "latest", "--yes")["streams"]
    assert [(one["stream"], one["skipped"]) for one in told] == [("a:1", 1), ("a:2", 1), ("b", 1)]
    missing = rstream("groups", "seek", "a:1", "a:3", "--group", "g", "--to", "earliest", "--yes")
    assert (missing.exit_code, "no group 'g' of stream 'a:3'" in missing.stderr) == (1, True), missing.stderr
    assert group(client, "a:1")["last-delivered-id"] == "1-1"
    nothing = rstream("groups", "seek", "c:*", "--group", "g", "--to", "earliest")
    assert (nothing.exit_code, "is called 'c:*' or matches it" in nothing.stderr) == (3, True)
    near = rstream("groups", "seek", "a:4", "--group", "g", "--to", "earliest")
    assert (near.exit_code, "did you mean 'a:" in near.stderr) == (3, True)


def test_the_table_for_people(orders: list[str], rstream: Rstream) -> None:
    ran = rstream("groups", "seek", "orders", "--group", "g", "--to", "latest")
    assert ran.exit_code == 3  # bob was active a moment ago
    assert "would be refused now: consumer 'bob' of group 'g' of stream 'orders' was active" in ran.stdout
    assert "dry run, nothing was changed; with --yes: set 1 group: 0 entries to be read again, 10 skipped" in ran.stdout
    refused = rstream("groups", "seek", "orders", "--group", "g", "--to", "latest", "--yes")
    assert (refused.exit_code, "RSTREAM_GROUP_IN_USE" in refused.stderr) == (1, True)


def test_create(client: redis.Redis, orders: list[str], rstream_json: RstreamJson, rstream: Rstream) -> None:
    words = ("groups", "create", "orders", "--group", "new")
    planned = rstream_json(*words, "--start", "1004-1")
    assert [one["name"] for one in client.xinfo_groups("orders")] == ["g"]
    made = rstream_json(*words, "--start", "1004-1", "--yes")
    assert (planned["streams"], made["dry_run"]) == (made["streams"], False)
    new = next(one for one in client.xinfo_groups("orders") if one["name"] == "new")
    assert new["lag"] == made["streams"][0]["lag"] == 15
    # A pattern leaves out streams to which a query has written dead letters; a name does not.
    client.xadd("orders:dead", {"dl.stream": "orders"})
    client.hset(origins_key("orders:dead").decode(), origin_field("orders", "g").decode(), "1")
    matched = rstream("groups", "create", "orders*", "--group", "all", "--yes")
    assert "note: 1 dead-letter stream of orders* left out: 'orders:dead'" in matched.stderr
    assert (len(client.xinfo_groups("orders")), client.xinfo_groups("orders:dead")) == (3, [])
    assert rstream("groups", "create", "orders:dead", "--group", "all", "--yes").exit_code == 0
    again = rstream(*words, "--yes")
    assert (again.exit_code, "has a group 'new' already" in again.stderr) == (1, True)
    absent = rstream("groups", "create", "order", "--group", "new", "--yes")
    assert (absent.exit_code, "did you mean 'orders'" in absent.stderr) == (1, True), absent.stderr
    [other] = rstream_json("groups", "create", "other", "--group", "new", "--mkstream", "--yes")["streams"]
    assert (other["makes_stream"], client.xlen("other")) == (True, 0)
    assert rstream("groups", "create", "orders", "--group", "x", "--start", "+3").exit_code == 2


def test_groups_alone_lists(orders: list[str], rstream: Rstream) -> None:
    assert "orders  g" in rstream("groups").stdout
    assert "orders  g" in rstream("groups", "orders").stdout
    assert rstream("groups", "list", "seek").exit_code == 1
    assert "\n  seek " in CliRunner().invoke(main, ["groups", "--help"]).output
