"""An Iceberg table that the Python package pyiceberg writes: no jar, and each micro-batch once.

One commit to the catalog does three things, or none of them:

    appends the rows    a snapshot; its summary names the query and the batch
    moves the table     from the snapshot in which the task has looked for the batch
    sets a property     `spark-streams.batch.<query>:<output>` = the number of the batch

The property decides whether a batch is in the table: it stays when snapshots expire. If another writer commits first,
the table has left that snapshot, and the commit fails. pyiceberg then loads the table again and repeats the commit with
the files that are written (`commit.retry.num-retries` of the table). Before that, the new state is searched for the
batch. So of two tasks that write one batch at the same time, one commits.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import TableError
from spark_streams.connector.keys import ICEBERG_BATCH, ICEBERG_QUERY
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.watch.failure import one_line
from spark_streams.jobs.output.one_task import (
    Pages,
    application_of,
    no_error_ends_the_job,
    write_in_one_task,
)
from spark_streams.jobs.output.owned_table import OwnableTable, TableSettings
from spark_streams.jobs.output.ownership import PROPERTY, Owner
from spark_streams.jobs.output.table_columns import TableFit, check_partitions, partition_fields

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


_PROPERTY = "spark-streams.batch."
# Of a table that the job creates. Each batch adds a manifest and a metadata file: the first are merged, and of the
# second the last 100 are kept.
_CREATED_WITH = {"commit.manifest-merge.enabled": "true", "write.metadata.delete-after-commit.enabled": "true"}
# The values of a partition are in no name of a folder: those of a text may be too long for one.
_CREATED_WITHOUT_NAMES = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
_EXPIRE_EVERY = 100  # batches
_MOST_BYTES = 128 * 1024 * 1024  # of rows in memory. A larger batch is several snapshots of one commit


class TableLocation(NamedTuple):
    """Where a table is. catalog: its name; properties: of the catalog, which hold passwords; name: of the table."""

    catalog: str
    properties: Mapping[str, Any]
    name: str

    @classmethod
    def configured(cls, catalog: str, options: Mapping[str, str], name: str) -> TableLocation:
        """Return a place with the properties of pyiceberg's own configuration on this machine, and these options.

        A task gets them from here: its machine needs no such configuration. Raises TableError.
        """
        from pyiceberg.utils.config import Config

        try:
            configured = Config().get_catalog_config(catalog) or {}
        except Exception as error:  # noqa: BLE001 - its text may be a line of the file, with a password
            raise TableError(
                f"pyiceberg's configuration (.pyiceberg.yaml) cannot be read: {type(error).__name__}; correct the file"
            ) from None
        return cls(catalog, {**configured, **options}, name)

    def open(self) -> Catalog:
        """Connect to the catalog. Raises TableError."""
        from pyiceberg.catalog import load_catalog

        with self._hiding_secrets():
            return load_catalog(self.catalog, **self.properties)

    def find(self) -> Table | None:
        """Return the table, None if it does not exist. Raises TableError."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self.open()
        with self._hiding_secrets():
            try:
                return catalog.load_table(self.name)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def table(self) -> Table:
        """Return the table. Raises TableError."""
        if (table := self.find()) is None:
            raise TableError(
                f"Iceberg table {self.name} is no longer in catalog {self.catalog!r}; start the job again to create it"
            )
        return table

    @contextlib.contextmanager
    def _hiding_secrets(self) -> Iterator[None]:
        """Raise an error of the block as a TableError, whose text has none of the properties."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each of the libraries below a catalog has its own
            text = one_line(error)
            for value in sorted({str(value) for value in self.properties.values()}, key=len, reverse=True):
                text = text.replace(value, "***") if value else text
            text = re.sub(r"//[^\s/@]*@", "//***@", text)
            raise TableError(
                f"Iceberg table {self.name} cannot be loaded by catalog {self.catalog!r}: {text}; correct the "
                "catalog's entry in .pyiceberg.yaml, or its properties in options"
            ) from None


class PyicebergTable(OwnableTable):
    """An Iceberg table by name. The first batch creates it, and its namespace, if they do not exist.

    Files of a killed run are in no snapshot, and Iceberg's remove_orphan_files deletes them.
    """

    def __init__(self, spark: SparkSession, config: TableSettings, transaction: str | None = None) -> None:
        super().__init__(spark, config, transaction)
        assert config.catalog is not None
        self._location = TableLocation.configured(config.catalog, config.options, config.place)

    def columns(self) -> StructType | None:
        # The table may use any transform of a column, such as day(at).
        from pyiceberg.transforms import VoidTransform

        table = self._location.find()
        if table is None:
            return None
        fields = [field for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]
        names = [table.schema().find_column_name(field.source_id) or field.name for field in fields]
        keys = {key.lower(): key for key in self._keys}
        check_partitions(
            f"Iceberg table {self._location.name}", [keys.get(name.lower(), name) for name in names], self._keys
        )
        try:
            return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)
        except PySparkException as error:
            raise TableError(
                f"Iceberg table {self._location.name} has a column that Spark has no type for: {one_line(error)}; "
                "write to another table"
            ) from None

    def owner(self) -> Owner | None:
        table = self._location.find()
        return None if table is None else Owner.from_json(table.properties.get(PROPERTY))

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Create the table, or add columns to it; and record its owner. Raises TableError for a type that Iceberg does
        not have."""
        from pyiceberg.exceptions import CommitFailedException

        owned = {} if owner is None else {PROPERTY: owner.to_json()}
        table = self._location.find()
        if table is None:
            self._create(fit.columns, owned)
            return
        try:
            if fit.added.fields:
                with table.update_schema() as change:
                    change.union_by_name(arrow_schema(fit.added))
            if owned and table.properties.get(PROPERTY) != owned[PROPERTY]:
                table.transaction().set_properties(owned).commit_transaction()
        except CommitFailedException:
            raise TableError(
                f"another program changed Iceberg table {self._location.name} while the job changed its columns and "
                "properties; start the job again"
            ) from None

    def _create(self, columns: StructType, owned: Mapping[str, str]) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        catalog, name = self._location.open(), self._location.name
        namespace = catalog.namespace_from(name)
        if not catalog.namespace_exists(namespace):
            catalog.create_namespace_if_not_exists(namespace)
        names = {column.lower(): column for column in columns.names}
        fields = partition_fields(self._keys, columns)
        has_names = any(isinstance(field.dataType, StringType | BinaryType) for field in fields)
        properties = {**_CREATED_WITH, **owned, **(_CREATED_WITHOUT_NAMES if has_names else {})}
        try:
            with (
                catalog.create_table_transaction(name, arrow_schema(columns), properties=properties) as creation,
                creation.update_spec() as partitions,
            ):
                for key in self._keys:
                    partitions.add_identity(names[key.lower()])
        except TableAlreadyExistsError:
            return
        except (UnsupportedPyArrowTypeException, ValueError) as error:
            raise TableError(f"Iceberg table {name} cannot be created: {error}") from None

    def write(self, rows: DataFrame, number: int) -> None:
        write_in_one_task(rows, _writer(self._location, application_of(self._spark, self._transaction), number))
        if self._compaction.keep is not None and (number + 1) % _EXPIRE_EVERY == 0:
            self._expire(self._compaction.keep)

    def _expire(self, keep: int) -> None:
        """Expire old snapshots, in a commit of its own: each commit writes the list of all snapshots again."""
        with no_error_ends_the_job(
            f"expiring snapshots of Iceberg table {self._location.name}",
            f"the job tries again after {_EXPIRE_EVERY} batches",
        ):
            oldest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=keep)
            self._location.table().maintenance.expire_snapshots().older_than(oldest).commit()


class _IsWrittenError(Exception):
    """Another task has written the batch."""


def _writer(place: TableLocation, application: str | None, number: int) -> Callable[[Pages], Pages]:
    """Return the function that one task runs. Its column `written` is false if the table holds the batch already.

    application, number: the identity of the batch; application None: it is always appended.
    """
    summary = {} if application is None else {ICEBERG_QUERY: application, ICEBERG_BATCH: str(number)}

    def is_in(table: Table) -> bool:
        name = f"{_PROPERTY}{application}"
        if application is None or name not in table.properties:
            return False
        last = parse_number(table.properties[name])
        if last is None:
            raise TableError(
                f"property {name!r} of Iceberg table {place.name} is not the number of a batch: another program has "
                "changed it. Set it to the last batch of the query that the table has"
            )
        return last >= number

    def write(pages: Pages) -> Pages:
        from pyiceberg.exceptions import CommitFailedException

        table = _watched(place.table(), is_in)
        if is_in(table):
            yield pa.record_batch({"written": [False]})
            return
        transaction = table.transaction()
        for rows in _in_parts(pages, table.schema().as_arrow()):
            transaction.append(rows, snapshot_properties=summary)
        if application is not None:
            transaction.set_properties({f"{_PROPERTY}{application}": str(number)})
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            if not is_in(place.table()):
                raise TableError(
                    f"other programs changed Iceberg table {place.name} before each attempt to commit a batch; start "
                    "the job again, or raise the table's property commit.retry.num-retries (default 4)"
                ) from error
        except Exception:
            # Of some errors, such as a lost connection, the task cannot know whether the catalog has committed.
            if not is_in(place.table()):
                raise
        yield pa.record_batch({"written": [True]})

    return write


def _watched(table: Table, is_written: Callable[[Table], bool]) -> Table:
    """Return the table. When pyiceberg loads it again to repeat a commit, it finds a batch that is there by then."""
    from pyiceberg.table import Table

    class Watched(Table):  # type: ignore[misc]  # mypy does not read pyiceberg
        def refresh(self) -> Table:
            super().refresh()
            if is_written(self):
                raise _IsWrittenError
            return self

    return Watched(table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config)


def _in_parts(pages: Pages, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows, as columns of the table, in parts that fit into memory. Raises ArrowInvalid if a value does not.

    A type of the table holds each value of Spark's type, so a cast changes no value.
    """
    part: list[pa.RecordBatch] = []
    size = 0
    for page in pages:
        part.append(page.cast(schema))
        size += page.nbytes
        if size >= _MOST_BYTES:
            yield pa.Table.from_batches(part, schema)
            part, size = [], 0
    if any(page.num_rows for page in part):
        yield pa.Table.from_batches(part, schema)
