"""The programs of examples/recipes as they are: each runs, and shows and leaves what it says."""

from __future__ import annotations

import runpy

import pytest
from pyspark.sql import SparkSession

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.legs.recipes.conftest import RECIPES
from tools.servers.server import Server

pytestmark = pytest.mark.spark

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-"
# What each shows, and how many entries it leaves.
PROGRAMS: dict[str, tuple[list[str], dict[str, int]]] = {
    "avro_columns": (["ann", "12.50", "no Avro", "IndexError"], {"example:avro:orders": 1, "example:avro:dead": 1}),
    "protobuf_columns": (
        ["1250", "[new, gift]", "no Order"],
        {"example:protobuf:orders": 1, "example:protobuf:dead": 1},
    ),
    "running_totals": (["|     ann|     2|112.49|", "|     bob|     1|250.00|"], {"example:totals": 2}),
    "late_rows": (["too late: 1\n", "20.5", "21.5"], {"example:hours": 4}),
    "delta_table": (["{'customer': 'bob', 'amount': Decimal('250.00')}"], {"example:sales": 2}),
    "latest_of_changes": (
        ["[{'id': 1, 'name': 'ann', 'credit': Decimal('99.00')}]"],
        {"example:shop.public.customers": 4},
    ),
    "latest_in_hashes": (["99.99", "Oslo"], {"example:moves": 3}),
    "trace_context": ([TRACE, "shop=1"], {"example:checked": 2, "example:traced:dead": 1}),
}


def test_each_program_is_tested() -> None:
    assert {path.stem for path in RECIPES.glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(
    spark: SparkSession, server: Server, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "running_totals" and not hasattr(type(spark.range(1).groupBy()), "transformWithState"):
        pytest.skip("Spark has transformWithState since 4.1")
    if name == "late_rows" and not HAS_READ_LIMITS:
        pytest.skip("before Spark 4.2 the last windows come with the next batch (docs/reference/compatibility.md)")
    monkeypatch.setenv("RSTREAM_URL", server.url)
    runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")
    shown = capsys.readouterr().out
    words, left = PROGRAMS[name]
    assert [word for word in words if word not in shown] == [], shown
    with server.client() as client:
        assert {stream: client.xlen(stream) for stream in left} == left
        for stream in client.scan_iter("example:*", _type="stream"):
            assert all(group["pending"] == 0 for group in client.xinfo_groups(stream))
