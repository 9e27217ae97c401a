"""A table to which micro-batches are appended: where it is Delta once each, otherwise at least once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_streams.jobs.output.batch_name import query_id


class AppendedTable:
    """Of any format, by path or by name.

    Delta keeps, in the transaction that appends, the number of the last batch of each `txnAppId`, and passes over a
    batch with that number or a lower one.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str | None,
        name: str | None,
        keys: list[str],
        kind: str,
        options: Mapping[str, str],
        transaction: str | None,
    ) -> None:
        """path, name (of the catalog): one of them, or none where the options say the place; transaction: what tells
        this output from the query's others, for Delta; None: no format's own way to write once is used."""
        self._spark = spark
        self._path, self._name = path, name
        self._keys, self._kind, self._options = keys, kind, dict(options)
        self._transaction = transaction

    def sweep(self) -> None:
        """Nothing: what a killed run has begun is the format's own affair."""

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch of the query that runs on this thread."""
        writer = rows.write.format(self._kind).mode("append").options(**self._options)
        if self._transaction is not None:
            own = {"txnAppId": f"{query_id(self._spark)}:{self._transaction}", "txnVersion": str(number)}
            writer = writer.options(**own)
        if self._keys:
            writer = writer.partitionBy(*self._keys)
        if self._name is not None:
            writer.saveAsTable(self._name)
        else:
            writer.save(self._path)
