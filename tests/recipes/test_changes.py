"""The recipe that keeps a Delta table equal to a database table: large values that an event does not have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams import register
from tests.recipes.conftest import recipe_of
from tools.servers.server import Server

pytestmark = pytest.mark.spark

AT = 1_700_000_000_000
PLACEHOLDER = "__debezium_unavailable_value"
Change = tuple[str, int, str | None, str | None, int]  # operation, key, name, credit, position


def test_a_value_that_is_not_in_the_event_keeps_that_of_the_table(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """In the same micro-batch, in a later one, in a late event, and after a delete."""
    recipe = recipe_of("latest_of_changes")
    register(spark)

    def rows_after(changes: Sequence[Change]) -> list[tuple[int, str | None, Decimal | None]]:
        with server.client() as client:
            for op, key, name, credit, position in changes:
                image = {"id": key, "name": name, "credit": credit}
                images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
                event = {"op": op, "source": {"ts_ms": AT, "lsn": position}, **images}
                client.xadd(recipe.STREAM, {"key": json.dumps({"id": key}), "value": json.dumps(event)})
        writer = recipe.into_latest(spark, server.url, str(tmp_path / "table"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        rows = recipe.rows_in(str(tmp_path / "table"))
        return sorted((row["id"], row["name"], row["credit"]) for row in rows)

    one, two = Decimal("1.00"), Decimal("2.00")
    assert rows_after([("c", 1, "large", "1.00", 1), ("c", 2, "other", "1.00", 2)]) == [
        (1, "large", one),
        (2, "other", one),
    ]
    assert rows_after([("u", 1, PLACEHOLDER, "2.00", 3)]) == [(1, "large", two), (2, "other", one)]
    changes: list[Change] = [
        ("u", 1, "new", PLACEHOLDER, 4),
        ("u", 1, PLACEHOLDER, "1.00", 5),
        ("u", 2, None, "2.00", 6),
    ]
    assert rows_after(changes) == [(1, "new", one), (2, None, two)]
    late: list[Change] = [("u", 1, "large", "2.00", 2), ("u", 1, PLACEHOLDER, "2.00", 7)]
    assert rows_after(late) == [(1, "new", two), (2, None, two)]
    again: list[Change] = [
        ("d", 1, PLACEHOLDER, None, 8),
        ("c", 1, "again", "1.00", 9),
        ("u", 1, PLACEHOLDER, "2.00", 10),
    ]
    assert rows_after(again) == [(1, "again", two), (2, None, two)]
    unknown: list[Change] = [("d", 2, None, None, 11), ("u", 3, PLACEHOLDER, "1.00", 12)]
    assert rows_after(unknown) == [(1, "again", two), (3, None, one)]
