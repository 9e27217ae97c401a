"""`rstream where` finds the rows of an entry in tables that the jobs' writers of Delta and Iceberg have written.

The lives of ten entries are led here, too: this Python has pyiceberg.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.connector.keys import application
from tests.legs.recipes.tables import KINDS, Deltalake, Kind, Pyiceberg
from tests.operations.journey.test_batches import write
from tests.operations.journey.test_script import test_the_lives_of_ten_entries
from tools.servers.server import Server, running_engine

__all__ = ["test_the_lives_of_ten_entries"]

SCHEMA = pa.schema({"_stream": pa.string(), "_id": pa.string()})
QUERY = "the-query"  # of the checkpoint that `write` writes
_RSTREAM = "from spark_streams.cli import main; main(prog_name='rstream')"


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with running_engine() as server, server.client() as client:
        for n in range(1, 10):
            client.xadd("orders", {"n": n}, id=f"{n}-0")
        yield server


def append(kind: Kind, query: str, batch: int, *ids: str) -> None:
    """Append the rows of these entries as the job's task does."""
    rows = pa.RecordBatch.from_pylist([{"_stream": "orders", "_id": entry} for entry in ids], SCHEMA)
    done = kind.writer("t", application(query, "table"), batch, SCHEMA)(iter([rows]))
    assert [page["written"].to_pylist() for page in done] == [[True]]


def told(engine: Server, kind: Kind, checkpoint: Path, table: str, entry: str) -> list[dict[str, Any]]:
    """The lines about rows. The command reads pyiceberg's configuration from the environment."""
    options = kind.options if isinstance(kind, Pyiceberg) else {}
    environment = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": value for name, value in options.items()}
    words = ["where", "orders", entry, "--json", "--url", engine.url, "--checkpoint", str(checkpoint), "--table", table]
    done = subprocess.run(
        [sys.executable, "-c", _RSTREAM, *words], env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)[0]["lines"]
    return [line for line in lines if line["event"] in ("rows", "no rows", "row")]


@pytest.mark.parametrize("name", KINDS)
def test_the_version_or_the_snapshot_of_a_batch_and_the_file_of_a_row(
    engine: Server, name: str, tmp_path: Path
) -> None:
    kind, checkpoint = KINDS[name](tmp_path), tmp_path / "checkpoint"
    for number, (after, last) in enumerate([(0, 4), (4, 7), (7, 8)]):
        write(checkpoint, number, after, last, last)
    kind.create("t", SCHEMA)
    append(kind, "another", 1, "5-0")
    append(kind, QUERY, 0, "1-0", "2-0", "3-0")
    append(kind, QUERY, 1, "5-0", "6-0")
    table = str(tmp_path / "t") if isinstance(kind, Deltalake) else "lake.shop.t"
    rows, row = told(engine, kind, checkpoint, table, "6-0")
    assert (rows["event"], rows["batch"], rows["exact"]) == ("rows", 1, True)
    if isinstance(kind, Pyiceberg):
        assert rows["place"] == f"snapshot {kind.table('t').current_snapshot().snapshot_id}"
    else:
        assert rows["place"] == "version 3"
    assert (row["exact"], len(row["files"])) == (True, 1)
    assert told(engine, kind, checkpoint, table, "4-0")[1]["files"] == []  # the job's filter has dropped it
    assert [(one["event"], one["exact"]) for one in told(engine, kind, checkpoint, table, "8-0")] == [("no rows", True)]


def test_what_expired_snapshots_had_is_not_known_and_no_password_is_told(engine: Server, tmp_path: Path) -> None:
    kind, checkpoint = Pyiceberg(tmp_path), tmp_path / "checkpoint"
    write(checkpoint, 0, 0, 4, 4)
    kind.create("t", SCHEMA)
    append(kind, QUERY, 0, "1-0")
    append(kind, QUERY, 1, "5-0")
    first = kind.table("t").snapshots()[0].snapshot_id
    kind.table("t").maintenance.expire_snapshots().by_ids([first]).commit()
    [rows] = told(engine, kind, checkpoint, "lake.shop.t", "1-0")
    assert (rows["event"], rows["exact"], "have expired" in rows["because"]) == ("no rows", False, True)
    kind.options["uri"] = "postgresql://ann:sehr-geheim@127.0.0.1:1/lake"
    [rows] = told(engine, kind, checkpoint, "lake.shop.t", "1-0")
    assert (rows["exact"], "cannot load it" in rows["because"]) == (False, True)
    assert "sehr-geheim" not in json.dumps(rows)
