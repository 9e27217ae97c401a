"""A table that a job writes: what each format can do, and how a query comes to own it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.jobs.output.ownership import Owner
from spark_streams.jobs.output.table_columns import TableFit


class Compaction(NamedTuple):
    """When small files are merged. every: batches, 0: never; keep: hours that replaced files stay, None: forever."""

    every: int = 0
    keep: int | None = None


@dataclass(frozen=True)
class TableSettings:
    """What a format needs to know of its table."""

    where: str  # its name in the configuration
    kind: str = "parquet"  # the format
    path: str | None = None  # it or the name is set if the format needs one
    name: str | None = None
    partition_by: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)  # of the format
    catalog: str | None = None  # of pyiceberg
    compaction: Compaction = field(default_factory=Compaction)

    @property
    def place(self) -> str:
        """Path or name of the table. Options of formats such as jdbc name the place themselves."""
        return self.path or self.name or "place of its options"


class OutputWriter(Protocol):
    """Destination of micro-batches."""

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""


class OwnableTable(ABC):
    """A table with columns, and with the query that writes it."""

    def __init__(self, spark: SparkSession, config: TableSettings, transaction: str | None = None) -> None:
        """transaction: name of this output within the query, for tables that record which batches they have; None: each
        row at least once."""
        self._spark = spark
        self._place = config.place  # path or name
        self._keys = config.partition_by  # columns that partition the table
        self._kind = config.kind
        self._options = dict(config.options)
        self._compaction = config.compaction
        self._transaction = transaction

    @abstractmethod
    def columns(self) -> StructType | None:
        """Return the columns, None if there is no table yet or they cannot be known. Raises TableError, also if the
        table has another layout."""

    @abstractmethod
    def owner(self) -> Owner | None:
        """Return who writes the table, None if it does not say."""

    @abstractmethod
    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Give the table its columns, and its owner unless that is None, before the first micro-batch is written."""

    def files_of(self, number: int) -> list[str]:
        """Return the files that an earlier run of this query has written for a batch. Most formats have none."""
        return []

    def sweep(self, files: Sequence[str]) -> None:  # noqa: B027 - most formats handle files of a killed run themselves
        """Remove what an earlier run has left: files of the first batch that it has not replaced, and staged ones."""

    @abstractmethod
    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""


class OwnedTable:
    """A table that the query owns from its first micro-batch on, and whose rows are fitted to its columns.

    Only the query that holds the lease of its group begins a micro-batch. So an earlier run can have begun no other one
    than the first.
    """

    def __init__(self, table: OwnableTable, fit: TableFit, claim: Callable[[], Owner | None]) -> None:
        """claim: checks the table's owner, and returns this query as the owner, None if the table has none."""
        self.fit = fit
        self._table, self._claim = table, claim
        self._is_owned = False

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        if self._is_owned:
            self._table.write(self.fit.fit(rows), number)
            return
        self._table.prepare(self.fit, self._claim())
        self._claim()  # of two queries that start together, one is recorded
        files = self._table.files_of(number)
        self._table.write(self.fit.fit(rows), number)
        # Not before the write: if this run stood still, another one has written these files, and trimmed the entries.
        self._table.sweep(files)
        self._is_owned = True
