"""`rstream` and streams in shards: one name stands for all, and the end of a set takes nothing that is not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_streams.cli import main
from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.wire.connection import Connection
from tests.connector.shards.making import frame, sequence, sharded, shards_there
from tests.connector.sink.writing import batch_of, close, write
from tools.driving import ALL, NEVER_AHEAD, another_reader, forget_all, rows, stop_all
from tools.servers.server import Server

NAMES = shards_of("orders", 4)


def rstream(server: Server, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--url", server.url], env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def orders(server: Server) -> Iterator[None]:
    """A hundred rows of stream orders, in four shards. At the end no reader is left, which would write its lease."""
    checked, batch = sharded(server.url), batch_of(0)
    close(checked, batch, write([frame(sequence(100, 10))], checked, batch))
    yield
    forget_all()


def test_the_names_of_shards(server: Server) -> None:
    assert rstream(server, "shards", "orders").output.splitlines() == list(NAMES)
    assert json.loads(rstream(server, "shards", "--json").output) == [
        {"stream": "orders", "shards": 4, "by": "key", "lost": [], "key": True}
    ]
    for change in ((), ("--delete",), ("--recreate",)):
        told = rstream(server, "shards", "order", *change)
        assert (told.exit_code, "no stream 'order' at" in told.output) == (3 if change else 1, True)
    with server.client() as client:
        client.xadd("plain", {"a": "1"})
    told = rstream(server, "shards", "plain")
    assert (told.exit_code, "is not sharded" in told.output) == (1, True)


def test_the_logical_name_stands_for_all_shards(server: Server) -> None:
    with server.client() as client:
        for name in NAMES:
            client.xgroup_create(name, "g", id="0")
    lags = json.loads(rstream(server, "lag", "orders", "--json").output)
    assert {one["stream"] for one in lags} == {name for name, rows in shards_there(server).items() if rows}
    assert sum(one["lag"] for one in lags) == 100
    entries = json.loads(rstream(server, "show", "orders", "--last", "5", "--json").output)
    ids = [tuple(map(int, one["id"].split("-"))) for one in entries]
    assert len(ids) == 5
    assert ids == sorted(ids)
    [one] = json.loads(rstream(server, "show", "orders", "--first", "1", "--json").output)
    assert one["fields"]["key"].startswith("k")


def test_group_commands_and_tail_take_the_logical_name(server: Server) -> None:
    made = rstream(server, "groups", "create", "orders", "--group", "g", "--start", "earliest", "--yes", "--json")
    assert [one["stream"] for one in json.loads(made.output)["streams"]] == list(NAMES)
    moved = json.loads(
        rstream(server, "groups", "seek", "orders", "--group", "g", "--to", "latest", "--yes", "--json").output
    )
    assert sum(one["skipped"] for one in moved["streams"]) == 100
    ends = rstream(server, "tail", "orders", "-n", "5", "--json").output.splitlines()
    shown = json.loads(rstream(server, "show", "orders", "--last", "5", "--json").output)
    assert sorted(json.loads(line)["id"] for line in ends) == sorted(one["id"] for one in shown)
    assert rstream(server, "groups", "delete", "orders", "--group", "g", "--yes").exit_code == 0


def test_a_replay_takes_the_logical_name(server: Server) -> None:
    query = {"url": server.url, "streams": "orders", "group": "g", "startingOffsets": "earliest"}
    schema = pa.schema([("key", pa.string()), ("_id", pa.string())])
    one = another_reader(server, schema, limits=NEVER_AHEAD, **query)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert len(rows(one, at, end)) == 100
    assert one.latestOffset(end, ALL) == end
    stop_all()
    words = ("replay", "orders", "--group", "g", "--from=-2", "--yes", "--json")
    told = json.loads(rstream(server, *words).output)["streams"]
    handed = {one["stream"]: one["entries"] for one in told}
    assert handed == {name: min(2, len(found)) for name, found in shards_there(server).items()}
    again = another_reader(server, schema, limits=NEVER_AHEAD, **query)
    assert len(rows(again, end, again.latestOffset(end, ALL))) == sum(handed.values())


def test_nothing_is_added_that_nobody_would_read(server: Server) -> None:
    told = rstream(server, "add", "orders", "key=k1", "n=1")
    assert (told.exit_code, "so no query would read rows" in told.output) == (1, True)
    assert rstream(server, "add", NAMES[0], "key=k1", "n=1").exit_code == 0


def test_shards_are_deleted_when_all_groups_have_read_them(server: Server) -> None:
    refused = rstream(server, "shards", "orders", "--delete", "--yes")
    assert (refused.exit_code, "no group has read all" in refused.output) == (1, True)
    with server.client() as client:
        for name in NAMES:
            client.xgroup_create(name, "g", id="0")
        refused = rstream(server, "shards", "orders", "--delete", "--yes")
        assert (refused.exit_code, "group 'g' has not read all" in refused.output) == (1, True)
        for name in NAMES:
            for _, entries in client.xreadgroup("g", "c", {name: ">"}):
                client.xack(name, "g", *[entry for entry, _ in entries])
        planned = rstream(server, "shards", "orders", "--delete")
        assert planned.output == "dry run, nothing was changed; with --yes: deleted orders: 4 shards\n"
        assert client.exists(*NAMES, "rstream:shards:{orders}") == 5
        assert rstream(server, "shards", "orders", "--delete", "--yes").output == "deleted orders: 4 shards\n"
        assert not client.exists(*NAMES, "rstream:shards:{orders}")
    sharded(server.url, count=2)


@pytest.mark.parametrize("is_pending", [True, False])
@pytest.mark.parametrize(("late", "shard"), [("a", 0), ("b", 3), ("c", 1)])
def test_one_entry_that_one_of_several_groups_has_not_read_is_enough(
    server: Server, late: str, shard: int, is_pending: bool
) -> None:
    """The last entry of one shard: it is pending, or not delivered."""
    with server.client() as client:
        for name in NAMES:
            ids = [entry for entry, _ in client.xrange(name)]
            for group in ("a", "b", "c"):
                client.xgroup_create(name, group, id="0")
                read = len(ids) - (not is_pending) * ((group, name) == (late, NAMES[shard]))
                client.xreadgroup(group, "c", {name: ">"}, count=read)
                client.xack(name, group, *ids[: len(ids) - ((group, name) == (late, NAMES[shard]))])
        refused = rstream(server, "shards", "orders", "--delete", "--yes")
        assert f"group {late!r} has not read all entries of {NAMES[shard]!r}" in refused.output
        assert client.exists(*NAMES) == 4
        client.xreadgroup(late, "c", {NAMES[shard]: ">"})
        client.xack(NAMES[shard], late, client.xrevrange(NAMES[shard], count=1)[0][0])
        assert rstream(server, "shards", "orders", "--delete", "--yes").exit_code == 0


@pytest.mark.parametrize("place", [0, 2])
def test_an_entry_that_is_added_while_shards_are_deleted_is_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """It is added behind the check of all shards, right before one of them is deleted."""
    with server.client() as client:
        for name in NAMES:
            client.xgroup_create(name, "g", id="$")
        send = Connection.send

        def added_before(self: Connection, data: bytes) -> None:
            deletes = b"\r\nDEL\r\n" in bytes(data) and NAMES[place].encode() in bytes(data)
            if deletes and client.xlen(NAMES[place]) == lengths[place]:
                client.xadd(NAMES[place], {"n": "late"})
            send(self, data)

        lengths = [client.xlen(name) for name in NAMES]
        monkeypatch.setattr(Connection, "send", added_before)
        refused = rstream(server, "shards", "orders", "--delete", "--yes")
        assert refused.exit_code == 1, refused.output
        assert f"{place} of 4 shards were deleted: group 'g' has not read all entries of" in refused.output
        assert client.xrevrange(NAMES[place], count=1)[0][1] == {b"n": b"late"}
        assert client.exists(*NAMES[place:], "rstream:shards:{orders}") == 5 - place
        client.xreadgroup("g", "c", {NAMES[place]: ">"}, noack=True)
        assert rstream(server, "shards", "orders", "--delete", "--yes").exit_code == 0
        assert not client.exists(*NAMES, "rstream:shards:{orders}")


def test_force_deletes_shards_unread(server: Server) -> None:
    assert rstream(server, "shards", "orders", "--delete", "--force", "--yes").exit_code == 0
    assert json.loads(rstream(server, "shards", "--json").output) == []


def test_the_page_names_what_there_is() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "keys.md").read_text(encoding="utf-8")
    assert "rstream shards orders --delete" in page


def test_shards_are_not_deleted_while_entries_wait_for_retry(server: Server) -> None:
    """They wait beside the shards, and would never be read again."""
    shard = NAMES[1]
    with server.client() as client:
        for name in NAMES:
            client.xgroup_create(name, "g", id="$")
        letter = dead_letter_fields([b"n", b"1"], {"stream": shard, "id": "5-5", "deliveries": "1"})
        client.execute_command("XADD", retry_stream(shard, "g", 2), "*", *letter)
        refused = rstream(server, "shards", "orders", "--delete", "--yes")
        assert refused.exit_code == 1
        assert f"1 entries of '{shard}'" in refused.output
        assert "wait for a retry by group 'g' (retryDelay)" in refused.output
        assert client.exists(*NAMES) == 4
        # What has come back and is not read.
        client.delete(retry_stream(shard, "g", 2))
        client.xgroup_create(returned_stream(shard, "g"), "g", id="0", mkstream=True)
        client.execute_command("XADD", returned_stream(shard, "g"), "*", *letter)
        refused = rstream(server, "shards", "orders", "--delete", "--yes")
        assert refused.exit_code == 1
        assert "group 'g' has not read all entries of 'rstream:returned" in refused.output
        client.execute_command("XADD", retry_stream(shard, "g", 1), "*", *letter)
        assert rstream(server, "shards", "orders", "--delete", "--force", "--yes").exit_code == 0
        assert not [key for key in client.scan_iter() if b"orders" in key and b":sink:" not in key]
