"""A table to which micro-batches are appended: each once if it is a Delta table, otherwise at least once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from spark_streams.jobs.output.batch_name import query_id


class AppendedTable:
    """A table of any format, by path or by name.

    Delta keeps the number of the last batch of each `txnAppId` in the transaction that appends. It skips a batch with
    that number or a lower one.
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
        """Set up the writer.

        path, name (of the catalog): one of them, or none if the options name the place; transaction: for Delta, the
        name of this output within the query; None: each batch at least once.
        """
        self._spark = spark
        self._path, self._name = path, name
        self._keys, self._kind, self._options = keys, kind, dict(options)
        self._transaction = transaction

    def sweep(self) -> None:
        """Do nothing. The format handles files of a killed run."""

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        writer = rows.write.format(self._kind).mode("append").options(**self._options)
        if self._transaction is not None:
            transaction_options = {
                "txnAppId": f"{query_id(self._spark)}:{self._transaction}",
                "txnVersion": str(number),
            }
            writer = writer.options(**transaction_options)
        if self._keys:
            writer = writer.partitionBy(*self._keys)
        if self._name is not None:
            writer.saveAsTable(self._name)
        else:
            writer.save(self._path)
