"""Counters of one run of a query: the table, and the counts of one stream.

    tasks, claims, the trigger     source.group.recovery     counts while the query runs
    Spark's progress               Counts.of_stream        reads them
    log lines                      Counts.to_json          writes them; Counts.read reads them
    metrics, notebooks, console    the columns `metric` and `heading` of TABLE

Each of these takes its counters from TABLE, so a new row is shown in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spark_streams.base.untyped import Json


@dataclass(frozen=True)
class RunCounter:
    """A counter of one run, by stream; if it counts values, also by column."""

    name: str  # in Spark's progress and in log lines
    unit: Literal["entries", "values"]
    meaning: str  # in docs/reference/metrics.md
    heading: str = ""  # of its column in tables of notebooks and of the console; empty: in none
    metric: str = ""  # without `_total`; empty: none
    is_alarm: bool = False  # the console shows a count above zero in red
    at_zero: bool = True  # log lines have it, too, while it is zero


LOST = RunCounter(
    "lost",
    "entries",
    "Entries that were missing when the query should have read them.",
    "lost",
    "rstream_lost_entries",
    is_alarm=True,
)
CLAIMED = RunCounter(
    "claimed",
    "entries",
    "Entries claimed from consumers that left them pending.",
    "claimed",
    "rstream_claimed_entries",
)
DEAD = RunCounter(
    "dead",
    "entries",
    "Entries moved to the dead-letter stream.",
    "dead letters",
    "rstream_dead_letters",
    is_alarm=True,
)
BAD = RunCounter(
    "bad",
    "values",
    "Values that did not fit the type of their column.",
    "bad values",
    "rstream_bad_values",
    is_alarm=True,
)
RETRIED = RunCounter("retried", "entries", "Entries sent to a retry stream (`retryDelay`).", at_zero=False)
TABLE = (LOST, CLAIMED, DEAD, BAD, RETRIED)  # in the order in which they are shown


def with_heading() -> tuple[RunCounter, ...]:
    """Return the counters that tables show."""
    return tuple(counter for counter in TABLE if counter.heading)


@dataclass(frozen=True)
class Counts:
    """Counts of one stream. by_column: by (name of the counter, column); the column of entries is empty."""

    by_column: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def read(cls, counts: Mapping[str, Json]) -> Counts:
        """Read counts by the names of their counters: as in a log line, which also has other names."""
        by_column: Counter[tuple[str, str]] = Counter()
        for counter in TABLE:
            count = counts.get(counter.name, 0)
            columns = count.items() if isinstance(count, dict) else [("", count)]
            by_column.update({(counter.name, column): number for column, number in columns if number})
        return cls(by_column)

    @classmethod
    def of_stream(cls, stream: str, report: Mapping[str, Json]) -> Counts:
        """Return the counts of a stream. report: the source's, by counter and stream (RunCounters.to_json)."""
        return cls.read(
            {counter.name: report[counter.name].get(stream, 0) for counter in TABLE if counter.name in report}
        )

    def to_json(self) -> dict[str, object]:
        """Return the counts as a log line has them."""
        return {
            counter.name: self[counter] if counter.unit == "entries" else self.columns(counter)
            for counter in TABLE
            if counter.at_zero or self[counter]
        }

    def __getitem__(self, counter: RunCounter) -> int:
        return sum(number for (name, _), number in self.by_column.items() if name == counter.name)

    def columns(self, counter: RunCounter) -> dict[str, int]:
        """Return the numbers of a counter of values by column."""
        return {column: number for (name, column), number in self.by_column.items() if name == counter.name}

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.by_column + other.by_column)
