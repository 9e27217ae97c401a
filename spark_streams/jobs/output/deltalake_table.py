"""A Delta table that the Python package deltalake writes: no jar, and each micro-batch once.

The transaction that appends a batch also records in Delta's log the query and the number of the batch. If the log holds
this batch or a later one, the batch is skipped. If two tasks write one batch at the same time, one of them commits.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import TableError
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.watch.failure import one_line
from spark_streams.jobs.output.one_task import (
    Pages,
    application_of,
    no_error_ends_the_job,
    write_in_one_task,
)
from spark_streams.jobs.output.owned_table import OwnableTable
from spark_streams.jobs.output.ownership import PROPERTY, Owner
from spark_streams.jobs.output.table_columns import TableFit, check_partitions, with_null_folders

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("spark_streams.jobs")
# How long the log names a replaced file, and files that the log does not name stay: longer than `keep`.
_NAMED = "delta.deletedFileRetentionDuration"
_NAMED_FOR = re.compile(r"interval (\d+) hours?")
_LONGER = 24 * 30  # hours


class _DeltaBatch(NamedTuple):
    """A batch to write."""

    path: str
    keys: list[str]
    options: dict[str, str]
    application: str | None  # with the number, its identity in Delta's log; None: it is always appended
    number: int


class DeltalakeTable(OwnableTable):
    """A Delta table by path. The first batch creates it if it does not exist.

    One task writes a batch as a stream of rows, so no process holds them all in memory. Files of a killed run are in no
    transaction, and Delta's VACUUM deletes them.
    """

    def columns(self) -> StructType | None:
        table = self._find()
        if table is None:
            return None
        check_partitions(f"Delta table {self._place}", table.metadata().partition_columns, self._keys)
        return StructType.fromJson(json.loads(table.schema().to_json()))

    def owner(self) -> Owner | None:
        table = self._find()
        return None if table is None else Owner.from_json(table.metadata().configuration.get(PROPERTY))

    def _find(self) -> DeltaTable | None:
        """Return the table, None if it does not exist."""
        from deltalake import DeltaTable

        exists = DeltaTable.is_deltatable(self._place, self._options)
        return DeltaTable(self._place, storage_options=self._options) if exists else None

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Create the table, or add columns to it; and record its owner."""
        from deltalake import DeltaTable, Schema

        properties = {} if owner is None else {PROPERTY: owner.to_json()}
        if self._compaction.keep is not None:
            properties[_NAMED] = f"interval {self._compaction.keep + _LONGER} hours"

        DeltaTable.create(
            self._place,
            arrow_schema(fit.columns),
            "ignore",
            partition_by=self._keys or None,
            configuration=properties,
            storage_options=self._options,
            raise_if_key_not_exists=False,
        )
        table = DeltaTable(self._place, storage_options=self._options)
        if changed := _changed(table.metadata().configuration, properties):
            table.alter.set_table_properties(changed, raise_if_not_exists=False)
        if fit.added.fields:
            table.alter.add_columns(Schema.from_json(fit.added.json()).fields)

    def write(self, rows: DataFrame, number: int) -> None:
        application = application_of(self._spark, self._transaction)
        rows = with_null_folders(rows, self._keys)  # readers do not agree about these texts
        batch = _DeltaBatch(self._place, self._keys, self._options, application, number)
        write_in_one_task(rows, _writer(batch, arrow_schema(rows.schema)))
        if self._compaction.every and (number + 1) % self._compaction.every == 0:
            self._compact()

    def _compact(self) -> None:
        housekeeping = f"compaction of Delta table {self._place}"
        with no_error_ends_the_job(housekeeping, f"the job tries again after {self._compaction.every} batches"):
            for failure in compact(self._place, self._options):
                _log.warning("%s: %s stays in small files: %s", housekeeping, *failure)
            for version in overlapping(self._place, self._options, self._compaction.every + _MORE):
                _log.warning("%s: rows may be there twice since version %d: %s", housekeeping, version, _TWO)
        if self._compaction.keep is None:
            return
        with no_error_ends_the_job(housekeeping, "replaced files stay until the next one"):
            from deltalake import DeltaTable

            # Only files that the log names as replaced. `full` would take each file below the path for the table's.
            table = DeltaTable(self._place, storage_options=self._options)
            table.vacuum(self._compaction.keep, dry_run=False, enforce_retention_duration=False, full=False)


def _changed(found: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the table does not have yet. A longer time of the table's own stays."""
    changed = {name: value for name, value in properties.items() if found.get(name) != value}
    if _NAMED in changed and _NAMED in found:
        theirs, ours = _hours(found[_NAMED]), _hours(changed[_NAMED])
        if theirs is None or (ours is not None and theirs >= ours):
            del changed[_NAMED]
    return changed


def _hours(value: str) -> int | None:
    """Return the hours of a property; None if it has another form."""
    match = _NAMED_FOR.fullmatch(value)
    return None if match is None else parse_number(match[1])


def _writer(batch: _DeltaBatch, schema: pa.Schema) -> Callable[[Pages], Pages]:
    """Return the function that one task runs. Its column `written` is false if the table holds the batch already."""

    def write(pages: Pages) -> Pages:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        table = DeltaTable(batch.path, storage_options=batch.options)
        if _has(table, batch):
            yield pa.record_batch({"written": [False]})
            return
        transactions = [] if batch.application is None else [Transaction(batch.application, batch.number)]
        # Spark's and Delta's timestamp types may name different time zones for the same value.
        reader = pa.RecordBatchReader.from_batches(schema, (page.cast(schema) for page in pages))
        try:
            # The commit fails if another task has written the batch since the table was loaded.
            write_deltalake(
                table,
                reader,
                mode="append",
                partition_by=batch.keys or None,
                storage_options=batch.options,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError:
            if not _has(DeltaTable(batch.path, storage_options=batch.options), batch):
                raise
        yield pa.record_batch({"written": [True]})

    return write


def _has(table: object, batch: _DeltaBatch) -> bool:
    if batch.application is None:
        return False
    last: int | None = table.transaction_version(batch.application)  # type: ignore[attr-defined]
    return last is not None and last >= batch.number


# Merge the small files of a Delta table: all at once, or partition by partition if one of them prevents it.
#
# deltalake does not find the files of some partitions again, such as those of a text with `~`. It then merges nothing.


_MOST_NAMED = 5  # partitions
_MORE = 20  # commits that are looked at beside those since the compaction before
_TWO = "two compactions at once replaced files. Let one program alone compact the table"
_LONGEST = 80  # characters of a value


def compact(path: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Merge small files in transactions of their own, which change no row.

    Yield what was not merged, each with its error. Raises the error of a table without partitions, TableError.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = DeltaTable(path, storage_options=dict(options))
    try:
        _merge(table)
        return
    except DeltaError:
        table = DeltaTable(path, storage_options=dict(options))
        if not table.metadata().partition_columns:
            raise
    failed = []
    for partition in table.partitions():
        try:
            # It commits nothing for a partition of one file.
            _merge(table, partition_filters=[(key, "=", value or "") for key, value in partition.items()])
        except DeltaError as error:
            failed.append((partition, one_line(error)))
    for partition, reason in failed[:_MOST_NAMED]:
        yield _shown(partition), reason
    if len(failed) > _MOST_NAMED:
        yield f"{len(failed) - _MOST_NAMED:,} more partitions", failed[-1][1]


def overlapping(path: str, options: Mapping[str, str], commits: int) -> list[int]:
    """Return compactions among the last commits that began before another one committed, and were not undone."""
    from deltalake import DeltaTable

    history = DeltaTable(path, storage_options=dict(options)).history(commits)
    undone = {commit["version"] - 1 for commit in history if commit["operation"] == "RESTORE"}
    merges = {one["version"]: one.get("readVersion", 0) for one in history if one["operation"] == "OPTIMIZE"}
    return [v for v, read in merges.items() if v not in undone and any(read < other < v for other in merges)]


def _merge(table: DeltaTable, **partition: Any) -> None:
    """Merge small files in one transaction. deltalake (1.6.6) lets two transactions replace the same files, so that
    their rows are there twice. If another one has replaced files meanwhile, undo this one, and raise TableError."""
    from deltalake.exceptions import DeltaError

    version, files = table.version(), {*table.file_uris()}
    table.optimize.compact(**partition)
    merged = table.version()
    if merged <= version + 1:
        return
    table.load_as_version(merged - 1)
    is_alone = files <= {*table.file_uris()}
    table.load_as_version(merged)
    if is_alone:
        return
    why = "another program has replaced files meanwhile"
    try:
        table.restore(merged - 1)  # it commits only as the next version
    except DeltaError as error:
        raise TableError(
            f"rows of the table are there twice since its version {merged}: {why}, and a later commit prevents that "
            f"the merge is undone ({one_line(error)}). Restore version {merged - 1}, and write again what came later"
        ) from error
    raise TableError(f"{why}, so the merge was undone. Let one program alone compact the table")


def _shown(partition: Mapping[str, str | None]) -> str:
    """Return the values of a partition. Producers wrote them: quoted, without control characters, and cut short."""
    return ", ".join(f"{key}={json.dumps(value)[:_LONGEST]}" for key, value in sorted(partition.items()))
