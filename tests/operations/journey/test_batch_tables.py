"""Rows of an entry in tables and archives, as the command tells them: folders of files, Delta's log, an archive.

Tables that deltalake and pyiceberg have written are in tests/legs/recipes/test_where.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.keys import application, partition_name
from tests.connector.deadletter.making import fill
from tests.operations.journey.test_batches import write
from tools.servers.server import Server

QUERY = "0f3c2a11-7777-4444-8888-000000000000"


@pytest.fixture
def checkpoint(client: redis.Redis, tmp_path: Path) -> Path:
    """Batch 0 has read 1-0 … 4-0 of orders, batch 1 has read 5-0 … 7-0 and is not complete."""
    for n in range(1, 10):
        client.xadd("orders", {"n": n}, id=f"{n}-0")
    folder = tmp_path / "checkpoint"
    write(folder, 0, 0, 4, 4)
    write(folder, 1, 4, 7, 7, is_committed=False)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    return folder


def lines(server: Server, entry: str, *words: str, stream: str = "orders") -> list[dict[str, Any]]:
    """The lines about rows and archives."""
    ran = CliRunner().invoke(main, ["where", stream, entry, "--json", *words, "--url", server.url])
    assert ran.exit_code == 0, ran.output
    told: list[dict[str, Any]] = json.loads(ran.output)[0]["lines"]
    return [line for line in told if line["event"] in ("rows", "no rows", "row", "archived", "not archived")]


def parquet(file: Path, *ids: str, columns: Sequence[str] = ("stream", "id")) -> Path:
    """Write the rows of these entries of orders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{columns[0]: "orders", columns[1]: entry} for entry in ids]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in columns])), file)
    return file


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Write one version of a Delta table."""
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    told = [{"commitInfo": {"timestamp": 1_700_000_000_000 + version}}, *actions]
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, told)))


def transaction(batch: int, query: str = QUERY) -> dict[str, Any]:
    return {"txn": {"appId": application(query, "table"), "version": batch, "lastUpdated": 1}}


def test_a_batch_has_its_folder_and_its_row_a_file(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    table = tmp_path / "lake"
    first = parquet(table / "who=ann" / f"batch={partition_name(QUERY, 0)}" / "part-0.parquet", "1-0", "2-0")
    parquet(table / "who=bob" / f"batch={partition_name(QUERY, 0)}" / "part-0.parquet", "3-0")
    parquet(table / ".spark-staging-1" / f"batch={partition_name(QUERY, 0)}" / "part-0.parquet", "4-0")
    parquet(table / "who=bob" / f"batch={partition_name('another', 1)}" / "part-0.parquet", "5-0")
    words = ("--checkpoint", str(checkpoint), "--table", str(table))
    rows, row = lines(server, "2-0", *words)
    assert (rows["event"], rows["batch"], rows["place"], rows["exact"]) == (
        "rows", 0, f"folder batch=b{QUERY[:8]}-0", True
    )  # fmt: skip
    assert (row["event"], row["files"], row["exact"]) == ("row", [str(first)], True)
    _, row = lines(server, "4-0", *words)
    assert (row["files"], row["exact"]) == ([], True)  # a filter has dropped it: what was staged does not count
    [rows] = lines(server, "5-0", *words)
    assert (rows["event"], rows["batch"], rows["exact"]) == ("no rows", 1, True)
    parquet(table / "who=bob" / f"batch={partition_name(QUERY, 1)}" / "part-0.parquet", columns=("n", "m"))
    [rows] = lines(server, "5-0", *words)  # without columns stream and id nothing is said of its row
    assert (rows["event"], rows["exact"]) == ("rows", False)
    assert "not complete" in rows["because"]


def test_deltas_log_names_the_version_of_a_batch(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    table = tmp_path / "lake"
    file = parquet(table / "who=a b" / "part-0.parquet", "1-0", "2-0", columns=("_stream", "_id"))
    commit(table, 0, {"metaData": {}})
    commit(table, 1, transaction(0, "another"), {"add": {"path": "x.parquet"}})
    commit(table, 2, transaction(0), {"add": {"path": "who=a%20b/part-0.parquet"}})
    (table / "_delta_log" / "00000000000000000002.checkpoint.parquet").write_bytes(b"x")
    words = ("--checkpoint", str(checkpoint), "--table", str(table))
    rows, row = lines(server, "2-0", *words)
    assert (rows["place"], rows["at_ms"], rows["exact"]) == ("version 2", 1_700_000_000_002, True)
    assert row["files"] == [str(file)]
    [rows] = lines(server, "5-0", *words)
    assert (rows["event"], rows["exact"]) == ("no rows", True)
    file.unlink()
    _, row = lines(server, "2-0", *words)
    assert (row["exact"], "replaced since" in row["because"]) == (False, True)


def test_what_a_table_does_not_record_is_not_known(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    old, other = tmp_path / "old", tmp_path / "other"
    commit(old, 7, transaction(1))
    commit(other, 0, transaction(1, "another"))
    (tmp_path / "empty").mkdir()
    commit(tmp_path / "catalog", 0, transaction(1))
    (tmp_path / "catalog" / "_delta_log" / "_staged_commits").mkdir()
    (tmp_path / "damaged" / "_delta_log").mkdir(parents=True)
    (tmp_path / "damaged" / "_delta_log" / f"{0:020}.json").write_bytes(
        b'\xff\n[1]\n{"txn": 5, "add": []}\n{"txn": {}}'
    )
    for name, why in (
        ("old", "begins with version 7"), ("other", "names no batch of the query"), ("empty", "neither a folder"),
        ("catalog", "not complete"), ("damaged", "names no batch"), ("lake.shop.orders", "pyiceberg"),
    ):  # fmt: skip
        place = name if "." in name else str(tmp_path / name)
        [rows] = lines(server, "2-0", "--checkpoint", str(checkpoint), "--table", place)
        assert (rows["event"], rows["exact"]) == ("no rows", False), name
        assert why in rows["because"]
    (checkpoint / "metadata").unlink()
    [rows] = lines(server, "2-0", "--checkpoint", str(checkpoint), "--table", str(old))
    assert rows["exact"] is False


def test_an_archive_has_an_entry_in_a_file(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """Also one whose stream is gone."""
    entry = "1767225600000-0"  # 2026-01-01
    archive = tmp_path / "archive"
    file = parquet(archive / "date=2026-01-01" / "batch=b0f3c2a11-3" / "part-0.parquet", entry)
    parquet(archive / "date=2026-01-02" / "batch=b0f3c2a11-4" / "part-0.parquet", entry)  # of another day: not read
    [line] = lines(server, entry, "--archive", str(archive))
    assert (line["event"], line["files"], line["exact"]) == ("archived", [str(file)], True)
    client.xadd("orders", {"n": 1}, id="1767225600001-0")
    [line] = lines(server, "1767225600001-0", "--archive", str(archive))
    assert (line["event"], line["exact"]) == ("not archived", True)
    client.xadd("others", {"n": 1}, id=entry)
    [line] = lines(server, entry, "--archive", str(archive), stream="others")
    assert line["event"] == "not archived"
    parquet(archive / "date=2026-01-01" / "batch=b0f3c2a11-5" / "part-0.parquet", columns=("n", "m"))
    for wrong, why in ((archive, None), (tmp_path / "missing", "not a folder")):
        [line] = lines(server, entry, "--archive", str(wrong))
        assert line["exact"] is (why is None)
        assert why is None or why in line["because"]
    file.write_bytes(b"PAR1 damaged")
    [line] = lines(server, entry, "--archive", str(archive))
    assert (line["event"], line["exact"]) == ("archived", False)


def test_a_table_that_cannot_be_used_is_an_error(server: Server, checkpoint: Path, tmp_path: Path) -> None:
    words = ["where", "orders", "1-0", "--url", server.url, "--table", str(tmp_path / "missing")]
    ran = CliRunner().invoke(main, words)
    assert (ran.exit_code, "--table needs --checkpoint" in ran.output) == (2, True)
    ran = CliRunner().invoke(main, [*words, "--checkpoint", str(checkpoint)])
    assert ran.exit_code == 2
    assert "CATALOG.NAMESPACE.TABLE" in str(ran.exception) + ran.output


def verdict(server: Server, entry: str, *words: str) -> str:
    """The first line, after the entry's name."""
    ran = CliRunner().invoke(main, ["where", "orders", entry, *words, "--url", server.url])
    assert ran.exit_code == 0, ran.output
    return ran.output.splitlines()[0].removeprefix(f"orders {entry}: ")


@pytest.mark.parametrize("columns", [("stream", "id"), ("n", "m")])
@pytest.mark.parametrize("what", ["never was", "deleted", "dead letter"])
def test_a_batch_in_a_table_proves_nothing_of_one_entry(
    server: Server, client: redis.Redis, checkpoint: Path, tmp_path: Path, what: str, columns: tuple[str, str]
) -> None:
    """The rows of the batch are there; that of this entry never was."""
    table = tmp_path / "lake"
    parquet(table / f"batch={partition_name(QUERY, 0)}" / "part-0.parquet", "1-0", columns=columns)
    entry = "2-5" if what == "never was" else "2-0"
    if what == "deleted":
        client.xdel("orders", "2-0")
    if what == "dead letter":
        fill(server, 1, into="orders:dead", stream="orders", id="2-0", group="etl")
    words = ("--checkpoint", str(checkpoint), "--table", str(table))
    rows, *row = lines(server, entry, *words)
    assert (rows["event"], rows["exact"], "of the batch" in rows["because"]) == ("rows", False, True)
    assert [one["files"] for one in row] == ([[]] if columns == ("stream", "id") else [])
    said = verdict(server, entry, *words)
    assert "its row is in table" not in said
    assert said.startswith("in batch 0 of query" if what == "dead letter" else "perhaps in batch 0 of query"), said


@pytest.mark.parametrize("change", ["removed", "rewritten", "some rows deleted", "a version is missing"])
def test_a_row_that_another_writer_has_taken_away_is_not_exact(
    server: Server, checkpoint: Path, tmp_path: Path, change: str
) -> None:
    """The file is still in the folder, and not in the table's last version."""
    table = tmp_path / "lake"
    parquet(table / "part-0.parquet", "1-0", "2-0", columns=("_stream", "_id"))
    commit(table, 0, {"metaData": {}})
    commit(table, 1, transaction(0), {"add": {"path": "part-0.parquet"}})
    words = ("--checkpoint", str(checkpoint), "--table", str(table))
    rows, row = lines(server, "2-0", *words)
    assert (rows["exact"], row["exact"]) == (True, True)
    assert verdict(server, "2-0", *words).endswith(f"; its row is in table {table}")
    gone = {"remove": {"path": "part-0.parquet"}}
    if change == "some rows deleted":
        commit(table, 2, gone, {"add": {"path": "part-0.parquet", "deletionVector": {"storageType": "u"}}})
    elif change == "a version is missing":
        commit(table, 3, {"add": {"path": "part-3.parquet"}})
    else:
        commit(table, 2, gone, *([{"add": {"path": "part-1.parquet"}}] if change == "rewritten" else []))
    rows, row = lines(server, "2-0", *words)
    assert (rows["exact"], row["exact"]) == (False, False)
    assert "version" in row["because"]
    assert "; perhaps its row is in table" in verdict(server, "2-0", *words)


def test_the_verdict_of_an_entry_that_an_archive_has(
    server: Server, client: redis.Redis, checkpoint: Path, tmp_path: Path
) -> None:
    """It was added, and its batch has read it, though the stream does not have it any more."""
    archive = tmp_path / "archive"
    parquet(archive / "date=1970-01-01" / f"batch={partition_name(QUERY, 0)}" / "part-0.parquet", "1-0", "2-0")
    client.xtrim("orders", minid="4-0", approximate=False)
    words = ("--checkpoint", str(checkpoint), "--archive", str(archive))
    assert verdict(server, "2-0", *words) == f"in batch 0 of query {QUERY}; removed from the stream; archived"
    assert verdict(server, "3-0", *words).startswith(f"perhaps in batch 0 of query {QUERY}; not in the stream: ")
