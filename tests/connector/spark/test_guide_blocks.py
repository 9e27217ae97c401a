"""Each block of Python in the guide runs, one after the other on a page, or says in a comment why it does not.

`<!-- given: NAMES -->` above a block: names that the text around it stands for. They are set before it runs. Every
block has `spark` and `url`. `<!-- not run: REASON -->`: it only compiles. `<!-- from FILE -->`: a program has it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.servers.server import Server

pytestmark = pytest.mark.spark

DOCS = Path(__file__).resolve().parents[3] / "docs"
_BLOCK = re.compile(r"^(?:<!-- (given|not run|from):? ([^\n]*) -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Tests of this page are in tests/connector/spark/test_testing.py.
_TESTED_THERE = "testing"


class Block(NamedTuple):
    """A block. mark: `given`, `not run`, `from` or ""; said: the text of the mark."""

    mark: str
    said: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(match[1] or "", match[2] or "", match[3]) for match in _BLOCK.finditer(page.read_text("utf-8"))]


PAGES = [page for page in [*sorted((DOCS / "guide").glob("*.md")), DOCS / "index.md"] if blocks_of(page)]
RUN = [page for page in PAGES if page.stem != _TESTED_THERE]


def names_of(code: str) -> tuple[set[str], set[str]]:
    """Return the names that code uses, and those that it defines."""
    used, defined = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return used, defined


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_name_is_defined_on_the_page(page: Path) -> None:
    known = {"spark", "url", *vars(builtins)}
    for block in blocks_of(page):
        assert not block.mark or block.said
        used, defined = names_of(block.code)
        names = set(block.said.split(", ")) if block.mark == "given" else set()
        known |= defined | names
        assert block.mark in ("not run", "from") or used <= known, (
            f"define it, or say <!-- given: … -->: {used - known}"
        )


@pytest.fixture
def values_of_names(spark: SparkSession, server: Server, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Return the values of names that a page may take for granted. Streams and an archive exist."""
    archive = "SELECT 'orders' AS stream, '1-0' AS id, current_timestamp() AS timestamp, map('a', 'b') AS fields"
    spark.sql(f"{archive}, current_date() AS date").write.partitionBy("date").parquet(str(tmp_path / "archive"))
    columns = "customer STRING, amount DECIMAL(10,2), at TIMESTAMP"
    options = {"url": server.url, "streams": "orders", "group": "given", "startingOffsets": "earliest"}
    reader = spark.readStream.format("rstream").schema(columns).options(**options)
    with server.client() as client:
        for customer, amount in (("ann", "12.50"), ("bob", "250.00")):
            client.xadd("orders", {"customer": customer, "amount": amount, "at": "2026-11-19T10:00:00Z"})
        yield {
            "orders": reader.load(),
            "totals": reader.load(),
            "reader": reader,
            "writer": reader.load().writeStream.format("rstream").options(url=server.url, stream="written"),
            "client": client,
            "entries": [(b"1-0", {b"customer": b"ann"})],
            "process": lambda fields: None,
            "function": lambda rows, number: None,
        }


class UntilDrained:
    """In place of the module spark_streams: `run` ends when all entries are read."""

    def run(self, writer: Any, **options: Any) -> Any:
        return spark_streams.run(writer.trigger(availableNow=True), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(spark_streams, name)


# Older versions of Spark lack features that the guide names with their version.
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="the guide is for the newest Spark")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_run(
    page: Path, spark: SparkSession, server: Server, values_of_names: dict[str, Any], tmp_path: Path
) -> None:
    names: dict[str, Any] = {"spark": spark, "url": server.url, "spark_streams": UntilDrained()}
    settings = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    if page.stem == "order-by-key":  # it writes this stream in shards
        values_of_names["client"].delete("orders")
    try:
        for block in blocks_of(page):
            if block.mark in ("not run", "from"):
                continue
            for name in block.said.split(", ") if block.mark == "given" else ():
                names.setdefault(name, values_of_names.get(name))
            code = block.code.replace("redis://127.0.0.1:6379/0", server.url)
            code = code.replace("/data/", f"{tmp_path}/").replace("/var/log/", f"{tmp_path}/")
            code = re.sub(r"^import spark_streams$", "", code, flags=re.MULTILINE).replace("metrics_port=9404", "")
            exec(code, names)
            assert names["spark"] is spark or names["spark"].sparkContext is spark.sparkContext
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(settings))
        if "watch" in names:
            names["watch"].close()
        for query in spark.streams.active:
            query.stop()
