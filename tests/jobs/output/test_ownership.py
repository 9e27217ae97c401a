"""Places of tables and their owners: several of each, and names that differ in one letter or one slash."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.jobs.output.owned_table import OwnableTable, OwnedTable
from spark_streams.jobs.output.ownership import Claimant, NamedPlace, Owner, check_places
from spark_streams.jobs.output.table_columns import TableFit, new_table


def places(*paths: str) -> list[NamedPlace]:
    return [NamedPlace(f"output[{number}].path", path) for number, path in enumerate(paths)]


@pytest.mark.parametrize(
    "paths",
    [
        ("/lake/day", "/lake/days"),  # one name begins with the other
        ("/lake/days", "/lake/day", "/lake/d"),
        ("s3://lake/day", "s3a://lake/days"),
        ("s3://lake/day", "gs://lake/day"),
        ("s3://lake/day", "s3://lake/Day"),
        ("s3://lake/day", "s3://lake/day/../days"),
    ],
)
def test_tables_beside_each_other_are_accepted(paths: Sequence[str]) -> None:
    check_places(places(*paths), [])


@pytest.mark.parametrize(
    "paths",
    [
        ("/lake", "/lake/day"),
        ("/lake/day", "/lake"),
        ("/lake/day/", "/lake/./day"),
        ("file:///lake/day", "/lake"),
        ("/lake/day", "/other", "/lake/day/hour"),  # not neighbours
        ("/lake/day/hour", "/other", "/third", "/lake/day"),
        ("s3://lake/day", "s3a://lake/day/hour"),
        ("s3://lake//day", "s3://lake/day"),  # as Hadoop's paths, which Spark gives to each store
        ("s3://lake/old/../day", "S3A://lake/./day/"),
        ("FILE:///lake//day", "/lake/day"),
        ("abfs://lake/day", "gs://lake/day", "abfss://lake/day"),
    ],
)
def test_tables_that_share_a_folder_are_refused(paths: Sequence[str]) -> None:
    with pytest.raises(ConfigError, match="share a folder"):
        check_places(places(*paths), [])


@pytest.mark.parametrize(
    ("table", "other", "is_accepted"),
    [
        ("/lake/day", NamedPlace("job.checkpoint", "/lake/day/c"), False),
        ("/lake/day", NamedPlace("job.checkpoint", "/lake"), False),
        ("/lake/day", NamedPlace("job.checkpoint", "/lake/days"), True),
        ("/lake/day", NamedPlace("job.checkpoint", "/lake/d"), True),
        ("/lake/day", NamedPlace("schema.file", "/lake/day/s.json"), False),
        ("/lake/day", NamedPlace("schema.file", "/lake"), True),
    ],
)
def test_a_table_shares_no_folder_with_another_place(table: str, other: NamedPlace, is_accepted: bool) -> None:
    others = [NamedPlace("job.log", "/var/log/a"), other, NamedPlace("job.metrics_file", "/var/log/b")]
    if is_accepted:
        check_places(places("/first", table, "/last"), others)
        return
    with pytest.raises(ConfigError, match=rf"{other.where} {other.path!r}"):
        check_places(places("/first", table, "/last"), others)


OURS = Owner("7c1:main", job="etl", group="g")


@pytest.mark.parametrize(
    ("found", "is_ours"),
    [
        (None, True),
        (OURS, True),
        (Owner("7c1:main", job="renamed", group="h"), True),  # the query is the owner, whatever the job's name
        (Owner("7c2:main", job="etl", group="g"), False),  # a new checkpoint of the same job
        (Owner("7c1:main2", job="etl", group="g"), False),  # another output of the same query
        (Owner(":main", job="etl", group="g"), False),
    ],
)
def test_the_owner_is_the_query_and_its_output(found: Owner | None, is_ours: bool) -> None:
    taker = Claimant("etl", "g", "7c1", take_over=True)
    said = "" if is_ours or found is None else f"taken over from {found.shown}"
    assert taker.check_owner("t", "table", found, OURS) == said
    if is_ours:
        assert Claimant("etl", "g", "7c1").check_owner("t", "table", found, OURS) == ""
        return
    with pytest.raises(TableError, match="two queries must not write one table"):
        Claimant("etl", "g", "7c1").check_owner("t", "table", found, OURS)


class _Table(OwnableTable):
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.recorded: Owner | None = None

    def columns(self) -> StructType | None:
        return None

    def owner(self) -> Owner | None:
        return self.recorded

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        self.seen.append(("prepare", owner))

    def files_of(self, number: int) -> list[str]:
        return [f"of {number}"]

    def sweep(self, files: Sequence[str]) -> None:
        self.seen.append(("sweep", *files))

    def write(self, rows: DataFrame, number: int) -> None:
        self.seen.append(("write", number))


class _Rows:
    """Rows of the columns of the table."""

    schema = StructType([StructField("n", LongType())])


def _write(table: OwnedTable, number: int) -> None:
    table.write(_Rows(), number)  # type: ignore[arg-type]


def test_what_an_earlier_run_left_is_swept_after_the_first_batch_only() -> None:
    table = _Table()
    owned = OwnedTable(table, new_table(_Rows.schema), lambda: OURS)
    for number in (7, 8, 9):
        _write(owned, number)
    assert table.seen == [("prepare", OURS), ("write", 7), ("sweep", "of 7"), ("write", 8), ("write", 9)]


def test_of_two_queries_that_start_together_the_one_that_is_not_recorded_writes_nothing() -> None:
    """The other one records itself between this one's look and its own record."""
    table, looks = _Table(), iter((OURS, TableError("recorded by another query")))

    def claim() -> Owner | None:
        look = next(looks)
        if isinstance(look, TableError):
            raise look
        return look

    owned = OwnedTable(table, new_table(_Rows.schema), claim)
    with pytest.raises(TableError, match="another query"):
        _write(owned, 7)
    assert table.seen == [("prepare", OURS)]
