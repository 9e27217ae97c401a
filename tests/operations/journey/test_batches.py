"""The batches of an entry, by the checkpoint folder of its query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from spark_streams.base.ids import StreamId
from spark_streams.cli import main
from spark_streams.connector.keys import record_key
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from tools.servers.server import Server


def write(folder: Path, number: int, after: int, last: int, read: int | None, is_committed: bool = True) -> None:
    """Write batch `number` of a query: entries after-0 < ID ≤ last-0 of `orders`."""
    at = {"orders": StreamOffset(StreamId(last, 0), number + 1, f"c-{number}", read, last)}
    new = {"orders": Range("orders", StreamId(after, 0), StreamId(last, 0), last - after)}
    lines = ["v1", json.dumps({"batchTimestampMs": 1_700_000_000_000 + number, "conf": {}})]
    lines.append(json.dumps(Offset("etl", "spark", at, new, token=f"c-{number}").to_json()))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"the-query"}')
    (folder / "offsets" / str(number)).write_text("\n".join(lines))
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\xff")
    if is_committed:
        (folder / "commits" / str(number)).write_text("v1\n{}")


@pytest.fixture
def orders(client: redis.Redis) -> None:
    """Entries 1-0 … 9-0, all of them given to a group."""
    for n in range(1, 10):
        client.xadd("orders", {"n": n}, id=f"{n}-0")
    client.xgroup_create("orders", "etl", id="9-0")


def lines(server: Server, folder: Path, entry: str) -> dict[str, dict[str, Any]]:
    """The lines of batches and rows, by event."""
    words = ["where", "orders", entry, "--json", "--checkpoint", str(folder), "--url", server.url]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.output)[0]["lines"]
    return {line["event"]: line for line in found if line["event"] in ("batch", "no batch", "rows")}


def test_an_entry_is_in_the_batch_whose_range_has_it(
    server: Server, client: redis.Redis, orders: None, tmp_path: Path
) -> None:
    write(tmp_path, 0, 2, 4, 2)
    write(tmp_path, 1, 4, 7, 5, is_committed=False)
    first, second = lines(server, tmp_path, "4-0")["batch"], lines(server, tmp_path, "5-0")["batch"]
    assert (first["batch"], first["committed"], first["exact"], first["query"]) == (0, True, True, "the-query")
    assert (second["batch"], second["committed"], second["at_ms"]) == (1, False, 1_700_000_000_001)
    write(tmp_path, 2, 3, 9, 11)  # the stream was created again: which of the two batches read this entry is not known
    assert "several batches" in lines(server, tmp_path, "5-0")["batch"]["because"]
    write(tmp_path, 2, 7, 7, 5)
    for outside in ("2-0", "8-0"):
        assert lines(server, tmp_path, outside)["no batch"]["exact"]
    client.xdel("orders", "4-0")
    assert "may have left" in lines(server, tmp_path, "4-0")["batch"]["because"]
    assert lines(server, tmp_path, "3-0")["batch"]["exact"]


def test_what_the_log_does_not_prove_is_not_known(
    server: Server, client: redis.Redis, orders: None, tmp_path: Path
) -> None:
    write(tmp_path / "shared", 0, 2, 4, None)
    assert "other consumers" in lines(server, tmp_path / "shared", "3-0")["batch"]["because"]
    write(tmp_path / "old", 120, 4, 7, 5)
    assert "begins with batch 120" in lines(server, tmp_path / "old", "3-0")["no batch"]["because"]
    assert lines(server, tmp_path / "old", "8-0")["no batch"]["exact"]
    (tmp_path / "old" / "offsets" / "121").write_text("v1\n{}\n-")
    assert "cannot be read" in lines(server, tmp_path / "old", "8-0")["no batch"]["because"]


def test_the_ledger_of_the_sink_says_whether_the_rows_are_written(
    server: Server, client: redis.Redis, orders: None, tmp_path: Path
) -> None:
    write(tmp_path, 0, 2, 4, 2)
    write(tmp_path, 1, 4, 7, 5)
    assert "rows" not in lines(server, tmp_path, "3-0")
    client.hset(record_key("the-query"), mapping={"": 0, "out": 0})
    written, begun = lines(server, tmp_path, "3-0")["rows"], lines(server, tmp_path, "5-0")["rows"]
    assert (written["closed"], written["streams"], written["exact"]) == (True, ["out"], False)
    assert "of the batch" in written["because"], "a filter of the query may have dropped the entry"
    assert (begun["closed"], begun["streams"]) == (False, [])
    client.hset(record_key("the-query"), mapping={"": 1, "out": 1})
    assert not lines(server, tmp_path, "3-0")["rows"]["exact"]


def test_a_folder_that_is_no_checkpoint_is_an_error(server: Server, orders: None, tmp_path: Path) -> None:
    words = ["where", "orders", "1-0", "--checkpoint", str(tmp_path), "--url", server.url]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert "checkpointLocation" in str(ran.exception) + ran.output
