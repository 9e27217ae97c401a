"""The job etl reads Avro by a registry into an Iceberg table, and is killed at five moments of a batch.

In the end each row is in the table once. The entry that cannot be decoded is one dead letter, and a console shows it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_streams.connector.deadletter.envelope import open_envelope
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.operations.console.incoming import link
from tests.connector.schemas.avro_values import READER, VERSIONS, encoded
from tests.connector.schemas.conftest import registry
from tests.connector.schemas.registry_server import RegistryServer
from tests.jobs.work import PATIENCE, Running, Work
from tests.legs.recipes.tables import Pyiceberg
from tests.operations.console.process import running_console
from tools.day_seed import first_seed
from tools.servers.server import Server
from tools.waiting import until

__all__ = ["registry"]

pytestmark = [pytest.mark.long, pytest.mark.spark]

BATCH = 20  # entries
ENTRIES = 12 * BATCH
UNKNOWN = 7 * BATCH + 3  # the entry whose schema the registry does not have
CONFIG = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = {batch}}}
dead_letters.stream = "orders:dead"
job.checkpoint = "{folder}/checkpoints/etl"

[decode]
field = "payload"
registry = "{registry}"
schema = "{folder}/order.avsc"

[table]
format = "pyiceberg"
catalog = "lake"
name = "shop.orders"
options = {{type = "sql", uri = "{uri}", warehouse = "{warehouse}"}}
"""


def value_of(n: int) -> tuple[int, dict[str, object]]:
    """The version of an entry's schema and its value. Version 1 has an INT, and versions 2 and 3 a LONG."""
    values: dict[int, dict[str, object]] = {
        1: {"customer": f"c{n}", "amount": n},
        2: {"customer": f"c{n}", "amount": 2**40 + n, "note": "x"},
        3: {"buyer": f"c{n}", "amount": 2**40 + n, "currency": "CHF"},
    }
    return n % 3 + 1, values[n % 3 + 1]


def row_of(n: int) -> dict[str, object]:
    """The row in the reader's columns."""
    version, value = value_of(n)
    return {
        "customer": f"c{n}",
        "amount": value["amount"],
        "currency": "CHF" if version == 3 else "USD",
    }


def words_of(n: int) -> list[bytes]:
    """The fields of an entry. One name is there twice."""
    version, value = value_of(n)
    payload = encoded(VERSIONS[version], value, 99 if n == UNKNOWN else version)
    return [b"payload", payload, b"\xff", b"\0\r\n", b"n", b"0", b"n", b"%d" % n]


def entries_in(server: Server, stream: str) -> list[tuple[bytes, list[bytes]]]:
    with Connection(Address.parse(server.url)) as connection:  # redis-py's replies have no name twice
        replies = connection.execute("XRANGE", stream, "-", "+")
    return [(entry, list(words)) for entry, words in replies]


class History:
    """Runs of the job, each killed at a moment, and the batches that were in the table and in Spark's log by then."""

    def __init__(self, work: Work, table: Pyiceberg, config: Path) -> None:
        self._work, self._table, self._config = work, table, config
        self.kills: list[tuple[str, int, int]] = []

    def start(self) -> Running:
        return self._work.start(["etl", "--config", str(self._config), "--summary", f"{self._work.folder}/etl.json"])

    def files(self, pattern: str) -> int:
        """Files of the table, also those of no snapshot."""
        return sum(1 for _ in self._work.folder.glob(f"shop/orders/{pattern}"))

    def in_table(self) -> int:
        """The last batch in the table, -1 without one."""
        table = self._table.place("orders").find()
        found = (
            [] if table is None else [v for k, v in table.properties.items() if k.startswith("spark-streams.batch.")]
        )
        return int(found[0]) if found else -1

    def in_log(self) -> int:
        """The last batch in Spark's commit log, -1 without one."""
        files = self._work.folder.glob("checkpoints/etl/commits/*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)

    def kill_when(self, moment: str, count: Callable[[], int], after: float = 0.0) -> None:
        """Start the job, and kill it as soon as a number has grown. after: seconds from then."""
        before = count()
        run = self.start()
        until(
            lambda: count() > before, f"not reached: {moment}", PATIENCE, lambda: run.process.poll() is None,
            run.output_file.read_text, interval=0.001,
        )  # fmt: skip
        time.sleep(after)
        assert not run.ended(0), run.output_file.read_text()[-3000:]
        run.kill()
        self.kills.append((moment, self.in_table(), self.in_log()))


def test_a_killed_etl_writes_each_decoded_row_once(server: Server, registry: RegistryServer, tmp_path: Path) -> None:
    for schema_id, schema in VERSIONS.items():
        registry.add(schema_id, schema)
    with server.client() as client:
        ids = [client.execute_command("XADD", "orders", "*", *words_of(n)) for n in range(ENTRIES)]
        kind = Pyiceberg(tmp_path)
        (tmp_path / "order.avsc").write_text(json.dumps(READER))
        config = tmp_path / "etl.toml"
        config.write_text(
            CONFIG.format(
                url=server.url, batch=BATCH, folder=tmp_path, registry=registry.url, uri=kind.options["uri"],
                warehouse=kind.options["warehouse"],
            )
        )  # fmt: skip
        began = time.perf_counter()
        with Work(tmp_path, server) as work:
            history = History(work, kind, config)
            history.kill_when("a new data file", lambda: history.files("data/**/*.parquet"))
            history.kill_when("a new metadata file", lambda: history.files("metadata/*.metadata.json"))
            history.kill_when("the table's commit", history.in_table)
            history.kill_when("the dead letter", lambda: client.xlen("orders:dead"))
            after = random.Random(first_seed()).random() / 2
            history.kill_when(f"{after:.2f} s after Spark's commit", history.in_log, after)
            history.start().finish()
            told = work.summary("etl")
    for moment, in_table, in_log in history.kills:
        print(f"killed at {moment}: the table has batches to {in_table}, Spark's log to {in_log}")
    print(f"six runs in {time.perf_counter() - began:.0f} s; the last read {told['entries']} entries")
    assert len(history.kills) == 5
    assert any(in_table > in_log for _, in_table, in_log in history.kills), "no batch was in the table when killed"

    rows = sorted(kind.rows("orders"), key=lambda row: int(row["customer"][1:]))
    assert rows == [row_of(n) for n in range(ENTRIES) if n != UNKNOWN]
    types = {field.name: str(field.field_type) for field in kind.table("orders").schema().fields}
    assert types == {"customer": "string", "amount": "long", "currency": "string"}

    ((letter_id, words),) = entries_in(server, "orders:dead")
    fields, envelope = open_envelope(words)
    assert list(fields) == words_of(UNKNOWN) == dict(entries_in(server, "orders"))[ids[UNKNOWN]]
    assert (envelope["reason"], envelope["id"]) == ("decode: unknown-schema", ids[UNKNOWN].decode())
    with running_console(server.url, "--decode", "payload", "--registry", registry.url) as console:
        page = console.browser().get(link("/dead/letter", name="orders:dead", id=letter_id.decode())).text
    assert "decode: unknown-schema" in page
    assert f"0x{words_of(UNKNOWN)[1].hex()}" in page
    assert "not decoded: unknown-schema" in page
