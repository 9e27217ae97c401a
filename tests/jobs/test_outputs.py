"""Where the rows of a job go, as its configuration says it: what is understood, and what is refused by name."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from unittest.mock import Mock

import pytest

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.parts.outputs import JobOutput, check_main_columns, outputs_of

SINK = '[[output]]\nname = "s"\n[output.sink]\nstream = "late"\n'
COMPACTED = '[table]\nformat = "deltalake"\npath = "a"\ncompact_every = {}\nkeep = "{}"'


def outputs(text: str) -> list[JobOutput]:
    return outputs_of(tomllib.loads(text), {"url": "redis://127.0.0.1:6379"})


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ('[table]\npath = "out"\npartition_by = ["month"]', "out as parquet by month, batch"),
        ('[table]\npath = "out"', "out as parquet by batch"),
        ('[table]\nformat = "ORC"\nname = "lake.flights"\npartition_by = ["m"]', "lake.flights as orc by m, batch"),
        ('[table]\nformat = "delta"\npath = "s3a://b/f"', "s3a://b/f as delta"),
        ('[table]\nformat = "deltalake"\npath = "f"\npartition_by = ["m"]', "f as deltalake by m"),
        ('[table]\nformat = "deltalake"\npath = "f"\nonce = false', "f as deltalake; at least once"),
        (
            '[table]\nformat = "deltalake"\npath = "f"\ncompact_every = 1000\nkeep = "7d"',
            "f as deltalake; compacted every 1,000 batches; files that were replaced more than 168 h ago are deleted",
        ),
        ('[table]\nformat = "pyiceberg"\ncatalog = "c"\nname = "d.t"\npartition_by = ["m"]', "d.t as pyiceberg by m"),
        (
            '[table]\nformat = "pyiceberg"\ncatalog = "c"\nname = "d.t"\nkeep = "7d"',
            "d.t as pyiceberg; snapshots older than 168 h expire",
        ),
        ('[table]\nformat = "iceberg"\nname = "c.d.t"\nonce = false', "c.d.t as iceberg; at least once"),
        ('[table]\npath = "out"\nonce = false\npartition_by = ["m"]', "out as parquet by m; at least once"),
        ('[table]\nformat = "jdbc"\nonce = false', "place of its options as jdbc; at least once"),
        (SINK, "stream 'late' at redis://127.0.0.1:6379"),
        (SINK + 'delivery = "at-least-once"\n', "stream 'late' at redis://127.0.0.1:6379; at least once"),
    ],
)
def test_the_delivery_guarantee_is_reported(text: str, plan: str) -> None:
    (output,) = outputs(text)
    assert output.to.plan == plan


def test_many_outputs() -> None:
    found = outputs('[table]\npath = "a"\n' + SINK + '[[output]]\nname = "t"\nsql = "SELECT 1"\ntable.path = "b"')
    assert [(one.shown, one.is_whole) for one in found] == [
        ("parquet", True), ("output s", True), ("output t", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"table.path is missing \(or \[\[output\]\]\)"),
        ("[table]", "table.path is missing .or table.name, a table of Spark's catalog.; add it"),
        ('[table]\npath = "a"\nname = "b"', "table.path and table.name contradict each other"),
        (
            '[table]\nformat = "iceberg"\nname = "t"',
            "table.format 'iceberg' cannot detect a batch that is run again.* with table.once = false",
        ),
        ('[table]\nformat = "deltalake"', r"table.path is missing; add it, or pass --set table.path=…"),
        ('[table]\nformat = "deltalake"\nname = "t"', "table.name has no meaning with format 'deltalake'"),
        ('[table]\nformat = "pyiceberg"\nname = "a.b"', "table.catalog is missing: set it to the name of a catalog of"),
        ('[table]\nformat = "pyiceberg"\ncatalog = "c"', 'table.name must be a namespace and a table, such as "shop.o'),
        ('[table]\nformat = "pyiceberg"\ncatalog = "c"\nname = "b"', "table.name must be a namespace and a table"),
        (
            '[table]\nformat = "pyiceberg"\ncatalog = "c"\npath = "b"',
            "table.path has no meaning .*: set table.name inst",
        ),
        ('[table]\npath = "a"\ncatalog = "c"', "table.catalog is for format 'pyiceberg': leave it out"),
        (
            '[table]\nformat = "pyiceberg"\ncatalog = "c"\nname = "a.b"\ncompact_every = 9',
            "pyiceberg has no commit that replaces data files .*run Iceberg's rewrite_data_files by another engine. "
            'table.keep = "7d" lets the job expire snapshots',
        ),
        ('[table]\npath = "a"\ncompact_every = 9', "table.compact_every is for format 'deltalake': leave it out"),
        ('[table]\npath = "a"\nkeep = "7d"', "table.keep has no meaning without table.compact_every: leave it out"),
        (COMPACTED.format(0, "7d"), "table.compact_every must be a number of batches, at least 1, not 0"),
        (COMPACTED.format(9, "90m"), "table.keep must be whole hours or days, such as \"7d\", not '90m'"),
        (COMPACTED.format(9, "59m"), "table.keep must be whole hours or days"),
        (COMPACTED.format(9, "7"), "table.keep must be a duration above 0 with its unit"),
        (
            COMPACTED.format(9, "7d") + "\nshared = true",
            "table.compact_every has no place in a shared table",
        ),
        ('[table]\npath = "a"\noptions = {txnVersion = 3}', "table.options.txnVersion is set by the job: leave it out"),
        ("output = [1]", r"\[\[output\]\] 1 must be a table, not 1"),
        ('[[output]]\ntable.path = "a"', r"\[\[output\]\] 1: name is missing"),
        ('[[output]]\nname = "x"\nwere = "a"', r"\[\[output\]\] 1: unknown key were; did you mean where\?"),
        ('[[output]]\nname = "x"\ntable.pth = "a"', r"unknown key table.pth; did you mean table.path\?"),
        ('[[output]]\nname = "x"\nselect = "a"', "select must be a list or a table, not 'a'"),
        ('[[output]]\nname = "x"', "output x needs exactly one of .output.table. and .output.sink."),
        (
            '[[output]]\nname = "x"\ntable.path = "a"\nselect = [1]',
            "output x: select must be a list of SQL, or a table",
        ),
        ('[[output]]\nname = "x"\ntable.path = "a"\nselect = []', "output x: select must be a list of SQL, or a table"),
        (
            '[[output]]\nname = "x"\ntable.path = "a"\nsql = "s"\nwhere = "w"',
            "where and select have no meaning with sql",
        ),
        ('[[output]]\nname = "x"\nsink.strem = "a"', "output x: the rstream sink has no option 'strem'; did you mean"),
        ('[[output]]\nname = "x"\nsink.nulls = "omit"', "output x: sink.stream is missing"),
        (SINK + SINK, "two outputs are called 's'"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        outputs(text)


def test_columns_that_a_table_is_partitioned_by_are_among_its_columns() -> None:
    found = outputs('[table]\npath = "a"\npartition_by = ["Month"]')
    check_main_columns(found, ["day", "month"])
    with pytest.raises(ConfigError, match="table.partition_by names 'Month', which is not among the columns"):
        check_main_columns(found, ["day"])
    with pytest.raises(ConfigError, match="table: its rows have a column 'batch'"):
        check_main_columns(found, ["month", "Batch"])


@pytest.mark.parametrize(
    ("text", "is_kept", "first"),
    [
        ('[table]\npath = "a"', True, "write"),
        (SINK, True, "count"),
        ('[table]\nformat = "deltalake"\npath = "a"', True, "count"),
        ('[table]\nformat = "deltalake"\npath = "a"', False, "write"),
        ('[table]\nformat = "jdbc"\nonce = false\n[table.options]\nurl = "jdbc:x"\ndbtable = "t"', True, "count"),
    ],
)
def test_rows_are_counted_after_they_are_written_if_they_are_visible_all_at_once(
    text: str, is_kept: bool, first: str
) -> None:
    """The first job reads the batch: of a stream or of jdbc it would write rows before all of the batch is read."""
    (output,) = outputs(text)
    steps = Mock()
    steps.count.return_value = 3
    assert replace(output, writer=steps).write(Mock(), steps.count, 7, is_kept) == 3
    assert steps.mock_calls[0][0] == first
    assert steps.write.call_count == 1
