"""The lives of ten entries, as a script leads them: the command tells exactly the script."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.connector.deadletter.transform import FieldChanges
from spark_streams.connector.keys import application
from tests.connector.deadletter.making import redrive
from tests.operations.journey.test_batch_tables import commit, parquet
from tests.operations.journey.test_batches import write
from tests.operations.journey.test_where import HOUR, fail
from tools.servers.server import Server

QUERY = "the-query"  # of the checkpoint that `write` writes
LOST, ARCHIVED, CLAIMED, POISON, DEAD, CORRECTED, SENT_BACK, IN_DELTA, IN_ICEBERG, LATE = range(10)

# An event, its group, and whether it is exact.
ADDED, NO_LETTER = ("added", "", True), ("no dead letter", "", True)
PASSED, SENT = ("acknowledged or passed", "etl", False), ("sent back", "", False)
DONE = [PASSED, NO_LETTER, SENT]  # nothing records that it was acknowledged
BATCH = ("batch", "etl", True)


def test_the_lives_of_ten_entries(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    since = int(time.time() * 1000) - HOUR
    ids = [f"{since + n}-0" for n in range(10)]
    for n, entry in enumerate(ids):
        client.xadd("orders", {"n": n}, id=entry)
    client.xgroup_create("orders", "etl", id="0")
    client.xreadgroup("etl", "spark", {"orders": ">"}, count=9)
    day = time.strftime("%Y-%m-%d", time.gmtime(since / 1000))

    def told(entry: str, *words: str, stream: str = "orders") -> list[dict[str, Any]]:
        ran = CliRunner().invoke(main, ["where", stream, entry, "--json", *words, "--url", server.url])
        assert ran.exit_code == 0, ran.output
        return [line for journey in json.loads(ran.output) for line in journey["lines"]]

    def script(lines: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
        return [(line["event"], line["group"] or "", line["exact"]) for line in lines]

    # A query fails for four entries. Two of the dead letters are sent back, one of them corrected.
    for entry in (CORRECTED, SENT_BACK):
        fail(server, ids[entry], "orders:dead", reason="decode", batch="0")
    corrected, sent_back = [letter for letter, _ in client.xrange("orders:dead")]
    for letter, changes in ((corrected, FieldChanges((("n", "7"),))), (sent_back, FieldChanges())):
        redrive(server, stream="orders:dead", changes=changes, limit=1)
        assert letter not in dict(client.xrange("orders:dead"))
    again, unchanged = [entry for entry, _ in client.xrange("orders", f"({ids[LATE]}")]
    fail(server, ids[POISON], "orders:dead", reason="deliveries", stage="claim", deliveries="3")
    fail(server, ids[DEAD], "orders:dead", reason="decode", message="n does not fit INT")
    poison, dead = [letter for letter, _ in client.xrange("orders:dead")]

    # Three are read: two of them are in tables, one is archived and trimmed. An unread one is lost by that trim.
    archive, delta, checkpoint = tmp_path / "archive", tmp_path / "delta", tmp_path / "checkpoint"
    file = parquet(archive / f"date={day}" / "batch=b0-1" / "part-0.parquet", ids[ARCHIVED])
    row = parquet(delta / "part-0.parquet", ids[IN_DELTA])
    commit(delta, 0, {"metaData": {}})
    commit(delta, 1, {"txn": {"appId": application(QUERY, "table"), "version": 0}}, {"add": {"path": row.name}})
    write(checkpoint, 0, since - 1, since + 8, 9)
    client.xack("orders", "etl", ids[ARCHIVED], ids[IN_DELTA], ids[IN_ICEBERG])
    client.xclaim("orders", "etl", "worker", 0, [ids[CLAIMED]])
    client.xtrim("orders", minid=ids[CLAIMED], approximate=False)

    lines = told(ids[LOST])
    assert script(lines) == [("added", "", True), ("pending", "etl", True), ("trimmed", "", True)]
    assert lines[0]["at_ms"] == since

    lines = told(ids[ARCHIVED], "--archive", str(archive))
    assert script(lines) == [ADDED, ("removed", "", False), *DONE, ("archived", "", True)], (
        "an archived entry was added"
    )
    assert (lines[1]["possible"][0], lines[-1]["files"]) == ("trimmed", [str(file)])

    lines = told(ids[CLAIMED])
    assert script(lines) == [ADDED, ("pending", "etl", True)]
    assert (lines[1]["consumer"], lines[1]["deliveries"]) == ("worker", 2)

    for entry, letter, reason in ((POISON, poison, "deliveries"), (DEAD, dead, "decode")):
        lines = told(ids[entry])
        assert script(lines) == [ADDED, ("dead", "etl", True), ("delivered", "etl", True)]
        assert (lines[1]["stream"], lines[1]["id"], lines[1]["reason"]) == ("orders:dead", letter, reason)
        assert (lines[1]["same_fields"], letter in lines[2]["source"]) == (True, True)

    copied = [ADDED, ("sent back from", "", False), ("not delivered", "etl", True)]
    gone = {corrected: ("absent", "", False), sent_back: ("deleted", "", True)}  # the highest deleted ID
    for letter, copy in ((corrected, again), (sent_back, unchanged)):
        lines = told(letter, stream="orders:dead")
        assert script(lines) == [("sent back", "", False), gone[letter], *copied]
        assert (lines[0]["stream"], lines[0]["id"], lines[0]["redrive"]) == ("orders", copy, 1)
        assert (lines[3]["previous"], lines[3]["redrive"]) == (f"orders:dead/{letter}", 1)
    assert dict(client.xrange("orders", again, again))[again]["n"] == "7"
    for entry, copy in ((CORRECTED, again), (SENT_BACK, unchanged)):  # the new entry names the first one
        lines = told(ids[entry])
        assert script(lines) == [ADDED, ("sent back", "", False), *DONE[:-1], *copied]
        assert (lines[1]["stream"], lines[1]["id"]) == ("orders", copy)

    lines = told(ids[IN_DELTA], "--checkpoint", str(checkpoint), "--table", str(delta))
    assert script(lines) == [BATCH, ("rows", "", True), ADDED, *DONE, ("row", "", True)]
    assert (lines[1]["place"], lines[1]["batch"], lines[-1]["files"]) == ("version 1", 0, [str(row)])

    has_iceberg = find_spec("pyiceberg") is not None
    table = _iceberg(tmp_path, ids[IN_ICEBERG]) if has_iceberg else "lake.shop.orders"
    lines = told(ids[IN_ICEBERG], "--checkpoint", str(checkpoint), "--table", table)
    if has_iceberg:
        assert script(lines) == [BATCH, ADDED, ("rows", "", True), *DONE, ("row", "", True)]
        assert lines[2]["place"].startswith("snapshot ")
    else:
        assert script(lines) == [BATCH, ADDED, *DONE, ("no rows", "", False)]
        assert "no package pyiceberg" in lines[-1]["because"]

    lines = told(ids[LATE])
    assert script(lines) == [ADDED, ("not delivered", "etl", True)]
    assert lines[1]["before"] == 0


def _iceberg(folder: Path, entry: str) -> str:
    """Write batch 0, with the row of this entry, as the job's task does. Return the table's name."""
    from pyiceberg.catalog import _ENV_CONFIG

    from tests.legs.recipes.tables import Pyiceberg

    schema = pa.schema({"_stream": pa.string(), "_id": pa.string()})
    kind = Pyiceberg(folder)
    kind.create("orders", schema)
    rows = pa.RecordBatch.from_pylist([{"_stream": "orders", "_id": entry}], schema)
    assert list(kind.writer("orders", application(QUERY, "table"), 0, schema)(iter([rows])))
    _ENV_CONFIG.config.setdefault("catalog", {})["lake"] = kind.options
    return "lake.shop.orders"
