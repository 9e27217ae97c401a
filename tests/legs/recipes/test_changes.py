"""The recipe that keeps a Delta table equal to a database table: large values that an event lacks, truncations,
and which event is the latest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams import register
from tests.legs.recipes.conftest import recipe_of
from tools.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(3)]

AT = 1_700_000_000_000
PLACEHOLDER = "__debezium_unavailable_value"
Change = tuple[str, int, str | None, str | None, int]  # operation, key, name, credit, position
Event = tuple[int | None, dict[str, object]]  # with its key
RowsAfter = Callable[[Sequence[Event]], list[tuple[int, str | None, Decimal | None]]]


@pytest.fixture
def rows_after(spark: SparkSession, server: Server, tmp_path: Path) -> RowsAfter:
    """Adds events of the key's column and their rows, and returns the rows of the table."""
    recipe = recipe_of("latest_of_changes")
    register(spark)

    def rows(events: Sequence[Event]) -> list[tuple[int, str | None, Decimal | None]]:
        with server.client() as client:
            for key, event in events:
                client.xadd(recipe.STREAM, {"key": json.dumps({"id": key}), "value": json.dumps(event)})
        writer = recipe.into_latest(spark, server.url, str(tmp_path / "table"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        found = recipe.rows_in(str(tmp_path / "table"))
        return sorted((row["id"], row["name"], row["credit"]) for row in found)

    return rows


def event_of(change: Change, **source: object) -> Event:
    op, key, name, credit, position = change
    image = {"id": key, "name": name, "credit": credit}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return key, {"op": op, "source": {"ts_ms": AT, "lsn": position, **source}, **images}


def of_table(op: str, position: int) -> Event:
    """A truncation or a message, which have no row and no key."""
    return None, {"op": op, "source": {"ts_ms": AT, "lsn": position}}


def in_binlog(change: Change, server_id: int, ts_ms: int, file: str = "b.000009") -> Event:
    position = change[-1]
    return event_of(change, lsn=None, server_id=server_id, file=file, pos=position, row=0, ts_ms=ts_ms)


def test_a_truncation_removes_the_rows_before_it(rows_after: RowsAfter) -> None:
    """In its micro-batch and before, not those after it; also if it comes late. A message changes nothing."""
    one, two = Decimal("1.00"), Decimal("2.00")
    first = [event_of(("c", key, "a", "1.00", key)) for key in (1, 2, 3)]
    assert rows_after([*first, of_table("m", 9)]) == [(1, "a", one), (2, "a", one), (3, "a", one)]
    between = [event_of(("u", 1, "b", "2.00", 10)), event_of(("c", 4, "b", "2.00", 11))]
    after = [event_of(("c", 2, "c", "2.00", 13)), event_of(("c", 5, "c", "2.00", 14))]
    assert rows_after([*between, of_table("t", 12), *after]) == [(2, "c", two), (5, "c", two)]
    assert rows_after([of_table("t", 12), of_table("t", 1)]) == [(2, "c", two), (5, "c", two)]
    assert rows_after([event_of(("u", 5, "d", "1.00", 16)), of_table("t", 15)]) == [(5, "d", one)]
    assert rows_after([of_table("t", 17), of_table("m", 18)]) == []


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_log_decides_within_a_server_and_the_time_between_servers(
    rows_after: RowsAfter, batches: int, is_turned: bool
) -> None:
    """A statement that began early and came last, a failover to lower files and numbers, and back: in one micro-batch
    and in two, in both orders."""
    pairs = [
        [in_binlog(("c", 1, "old", "1.00", 500), 2, AT), in_binlog(("u", 1, "new", "1.00", 900), 2, AT - 3_600_000)],
        [in_binlog(("c", 2, "old", "1.00", 500), 2, AT), in_binlog(("u", 2, "new", "1.00", 4), 1, AT + 1, "b.000001")],
        [in_binlog(("c", 3, "old", "1.00", 4), 1, AT, "b.000001"), in_binlog(("u", 3, "new", "1.00", 5), 2, AT + 1)],
        [
            in_binlog(("c", 4, "old", "1.00", 5), 2, AT, "b.999999"),
            in_binlog(("u", 4, "new", "1.00", 4), 2, AT, "b.1000000"),
        ],
    ]
    ordered = [pair[::-1] if is_turned else pair for pair in pairs]
    columns = [list(events) for events in zip(*ordered, strict=True)]
    for events in columns if batches == 2 else [columns[0] + columns[1]]:
        found = rows_after(events)
    assert [(key, name) for key, name, _ in found] == [(1, "new"), (2, "new"), (3, "new"), (4, "new")]


def test_a_value_that_is_not_in_the_event_keeps_that_of_the_table(rows_after: RowsAfter) -> None:
    """In the same micro-batch, in a later one, in a late event, and after a delete."""

    def after(changes: Sequence[Change]) -> list[tuple[int, str | None, Decimal | None]]:
        return rows_after([*map(event_of, changes)])

    one, two = Decimal("1.00"), Decimal("2.00")
    assert after([("c", 1, "large", "1.00", 1), ("c", 2, "other", "1.00", 2)]) == [
        (1, "large", one),
        (2, "other", one),
    ]
    assert after([("u", 1, PLACEHOLDER, "2.00", 3)]) == [(1, "large", two), (2, "other", one)]
    changes: list[Change] = [
        ("u", 1, "new", PLACEHOLDER, 4),
        ("u", 1, PLACEHOLDER, "1.00", 5),
        ("u", 2, None, "2.00", 6),
    ]
    assert after(changes) == [(1, "new", one), (2, None, two)]
    late: list[Change] = [("u", 1, "large", "2.00", 2), ("u", 1, PLACEHOLDER, "2.00", 7)]
    assert after(late) == [(1, "new", two), (2, None, two)]
    again: list[Change] = [
        ("d", 1, PLACEHOLDER, None, 8),
        ("c", 1, "again", "1.00", 9),
        ("u", 1, PLACEHOLDER, "2.00", 10),
    ]
    assert after(again) == [(1, "again", two), (2, None, two)]
    unknown: list[Change] = [("d", 2, None, None, 11), ("u", 3, PLACEHOLDER, "1.00", 12)]
    assert after(unknown) == [(1, "again", two), (3, None, one)]
