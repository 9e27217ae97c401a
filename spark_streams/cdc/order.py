"""The order of the changes of a key, as a text.

    1-00000001744613916000-…-00000000000000000150-…-00000001744613916500-00000000000000000000
    │ └─ source.ts_ms ───┘ │ └─ position in log ┘ │ └─ the entry's ID ──────────────────────┘
    │                      └ file                 └ row of a statement
    └ 0: a row of a snapshot; 1: a change

Debezium appends an event again after an error of the server, which may come after a later one: so the source's time
comes before the entry's ID. A row of a snapshot has its state at the begin of the snapshot, but the time of the
reading. Changes that follow it may have an earlier time. So each change is later than all rows of snapshots.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_streams.cdc.exact_json import text_of

_DAY_MS = 86_400_000
_LEAST_MS = 1_000_000_000_000  # of an ID that is a time in milliseconds: September 2001. Others are counters.
_SNAPSHOT_OPERATIONS = ("r", "c")  # old connectors write snapshots as inserts


def order() -> Column:
    """Return the text; null if the event's time is wrong."""

    def number(*names: str) -> Column:
        texts = [_text(name) for name in names]
        return F.lpad(F.coalesce(*texts, F.lit("0")), 20, "0")

    names = F.coalesce(*[_source(name) for name in ("file", "change_lsn")], F.lit(""))
    text = F.concat_ws(
        "-",
        F.when(_is_of_snapshot(), F.lit("0")).otherwise(F.lit("1")),
        number("ts_ms"),
        names,
        number("lsn", "pos", "scn", "ord"),
        number("row", "event_serial_no"),
        F.lpad(F.substring_index("_id", "-", 1), 20, "0"),
        F.lpad(F.substring_index("_id", "-", -1), 20, "0"),
    )
    return F.when(wrong_time().isNull(), text)


def wrong_time() -> Column:
    """Return why the time of the change cannot be right; null if it can."""
    time = _text("ts_ms")
    appended = F.substring_index("_id", "-", 1).try_cast("decimal(20, 0)")
    is_late = (appended >= _LEAST_MS) & (time.try_cast("decimal(20, 0)") > appended + F.lit(_DAY_MS))
    return F.when(~time.rlike(r"^\d{1,19}$"), F.lit("source.ts_ms is no time in milliseconds since 1970")).when(
        is_late, F.lit("source.ts_ms is more than a day later than the entry's ID")
    )


def _source(name: str) -> Column:
    return F.try_element_at("__source", F.lit(name))


def _text(name: str) -> Column:
    return F.expr(text_of(f"try_element_at(__source, '{name}')"))


def _is_of_snapshot() -> Column:
    is_marked = ~F.coalesce(F.lower(_source("snapshot")), F.lit("false")).isin("false", "")
    is_read = F.col("__op") == "r"
    return F.coalesce(is_read | (F.col("__op").isin(*_SNAPSHOT_OPERATIONS) & is_marked), F.lit(False))
