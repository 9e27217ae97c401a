"""Merge the small files of a Delta table: all at once, or partition by partition if one of them prevents it.

deltalake does not find the files of some partitions again, such as those of a text with `~`. It then merges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from spark_streams.connector.running.error_summary import one_line

_MOST_NAMED = 5  # partitions
_LONGEST = 80  # characters of a value


def compact(path: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Merge small files in transactions of their own, which change no row.

    Yield what was not merged, each with its error. Raises the error of a table without partitions.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = DeltaTable(path, storage_options=dict(options))
    try:
        table.optimize.compact()
        return
    except DeltaError:
        table = DeltaTable(path, storage_options=dict(options))
        if not table.metadata().partition_columns:
            raise
    failed = []
    for partition in table.partitions():
        try:
            # It commits nothing for a partition of one file.
            table.optimize.compact(partition_filters=[(key, "=", value or "") for key, value in partition.items()])
        except DeltaError as error:
            failed.append((partition, one_line(error)))
    for partition, reason in failed[:_MOST_NAMED]:
        yield _shown(partition), reason
    if len(failed) > _MOST_NAMED:
        yield f"{len(failed) - _MOST_NAMED:,} more partitions", failed[-1][1]


def _shown(partition: Mapping[str, str | None]) -> str:
    """Return the values of a partition. Producers wrote them: quoted, without control characters, and cut short."""
    return ", ".join(f"{key}={json.dumps(value)[:_LONGEST]}" for key, value in sorted(partition.items()))
