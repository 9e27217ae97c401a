"""Lives without Spark, of tables that Python writes: each run is a process of its own, which is really killed.

The process does what Spark does with a query: it records a batch in the checkpoint, lets the product's table write it,
and records the commit. A batch that has no commit is run again. There is no lease: a second process may do the same.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import OwnedTable
from spark_streams.jobs.output.ownership import Claimant, Owner
from spark_streams.jobs.output.pyiceberg_table import PyicebergTable
from spark_streams.jobs.output.table_columns import compare, new_table
from spark_streams.jobs.output.table_config import TableConfig
from tools.outputs.driver import Config, Outcome
from tools.outputs.life import Life
from tools.outputs.strikes import Strike

_COLUMNS = StructType([StructField(name, StringType()) for name in ("stream", "id", "n")]).add("k", IntegerType())
_TABLES: dict[str, Any] = {"deltalake": DeltalakeTable, "pyiceberg": PyicebergTable}
_forking: ForkServerContext = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "deltalake", __name__])


class Rows:
    """What the product uses of a DataFrame."""

    def __init__(self, pages: list[pa.RecordBatch]) -> None:
        self.schema, self.columns, self._pages = _COLUMNS, _COLUMNS.names, pages
        self.coalesce = self.toDF = lambda *_: self

    def mapInArrow(self, write: Callable[[Iterator[pa.RecordBatch]], Any], _schema: str) -> Any:
        return SimpleNamespace(collect=lambda: [*write(iter(self._pages))])


def work(config: Config, entries: list[dict[str, Any]], take_over: bool, said: Connection) -> None:
    """Run a query to its end."""
    try:
        _run(config, entries, take_over)
    except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
        said.send(f"{type(error).__name__}: {error}")
        os._exit(1)


def _run(config: Config, entries: list[dict[str, Any]], take_over: bool) -> None:
    checkpoint = Path(config["job"]["checkpoint"])
    query = _written(checkpoint / "metadata", uuid.uuid4().hex)
    settings = TableConfig.parse(config["table"], "table", config["table"].get("options", {}))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda _: query))
    table = _TABLES[settings.kind](spark, settings, "table")
    claimant = Claimant("etl", config["source"]["group"], query, take_over)

    def claim() -> Owner:
        owner = claimant.as_owner(query, "table")
        claimant.check_owner("table", "table.path", table.owner(), owner)
        return owner

    claim()
    found = table.columns()
    fit = new_table(_COLUMNS) if found is None else compare(_COLUMNS, found, "table", merge=False, remedy="")
    owned = OwnedTable(table, fit, claim)
    number, size = len(_names(checkpoint / "commits")), config["source"].get("maxEntriesPerTrigger", 1000)
    while (checkpoint / "offsets" / str(number)).exists() or _unread(checkpoint.parent, entries):
        unread = _unread(checkpoint.parent, entries)
        batch = json.loads(_written(checkpoint / "offsets" / str(number), json.dumps(unread[:size])))
        pages = [pa.RecordBatch.from_pylist([one], arrow_schema(_COLUMNS)) for one in batch]
        owned.write(Rows(pages), number)  # type: ignore[arg-type]
        _written(checkpoint / "commits" / str(number), "{}")
        number += 1


def _written(file: Path, text: str) -> str:
    """Write a file as a whole, unless it is there. Return its text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    own = file.with_name(f".{file.name}.{os.getpid()}")
    own.write_text(text)
    with contextlib.suppress(FileExistsError):
        os.link(own, file)
    own.unlink()
    return file.read_text()


def _unread(folder: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries that no batch of any checkpoint has: what a group would deliver."""
    files = [offsets / name for offsets in folder.glob("checkpoint*/offsets") for name in _names(offsets)]
    read = [entry for file in files for entry in json.loads(file.read_text())]
    return [entry for entry in entries if entry not in read]


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.isdigit()] if folder.exists() else []


class ShortLife(Life):
    """A life whose job is a process without Spark. All entries are good."""

    keys = ("1", "2", None)
    strikes = ("file", "file", "file", "file", "full", "hold")
    steps = (4, 9)

    def _config(self) -> Config:
        self.job = "etl"
        config = super()._config()
        return {name: config[name] for name in ("source", "table", "job")}

    def _is_good(self, key: tuple[str, str]) -> bool:
        return True

    def strike(self, strike: Strike, config: Config, take_over: bool) -> tuple[Outcome, bool]:
        """Run the job in a process, or in two at once."""
        entries = [
            {"stream": stream, "id": key, "n": fields["n"], "k": int(fields["k"]) if "k" in fields else None}
            for (stream, key), fields in self.entries.items()
        ]
        runs = []
        for _ in range(2 if strike.kind == "hold" else 1):
            said, says = _forking.Pipe(duplex=False)
            runs.append((_forking.Process(target=work, args=(config, entries, take_over, says)), said))
            runs[-1][0].start()
            says.close()
        for process, _ in runs:
            process.join()
        texts = [said.recv() if process.exitcode == 1 else "" for process, said in runs]
        return Outcome(max(abs(process.exitcode or 0) for process, _ in runs), " ".join(texts)), len(runs) > 1
