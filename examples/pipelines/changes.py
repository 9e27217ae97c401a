"""The view that a flow of changes reads (docs/guide/cdc.md): it stops the flow at what the flow cannot follow."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SERVER = "shop~00000000000000223344~binlog"  # SELECT DISTINCT split_part(_order, '/', 2)


def rows_of(changes: DataFrame) -> DataFrame:
    """Return the changes without messages. The flow fails at a truncation, at a change of another server than SERVER,
    and at a malformed event."""
    is_of_snapshot = F.col("_order").startswith("0/")
    is_of_another = ~is_of_snapshot & (F.split_part("_order", F.lit("/"), F.lit(2)) != SERVER)
    why = F.coalesce(
        "_malformed",
        F.when(F.col("_operation") == "truncate", "the table was truncated: refresh the table of the flow fully"),
        F.when(
            is_of_another, F.concat(F.lit("another server wrote it: refresh fully after a new snapshot. "), "_order")
        ),
    )
    stop = F.raise_error(F.concat(F.lit("The flow stopped at entry "), "_id", F.lit(", because "), why))
    return changes.where(F.when(why.isNotNull(), stop).otherwise(F.col("_operation") != "message"))
