"""Report on declared columns: values that do not fit, and columns that no entry has a field for. Pure."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from spark_streams.model.ids import StreamId
from spark_streams.model.untyped import Json

MAX_NAMES = 100  # names of fields in a report


@dataclass(frozen=True)
class BadValues:
    """Values of one column that do not fit. type: the declared SQL type; counts: number of values per stream; stream,
    entry, value: of the first value, its Python repr."""

    type: str
    counts: Mapping[str, int]
    stream: str
    entry: str
    value: str

    def __add__(self, other: BadValues) -> BadValues:
        first = min(self, other, key=lambda values: (StreamId.parse(values.entry), values.stream))
        return replace(first, counts=Counter(self.counts) + Counter(other.counts))

    @property
    def count(self) -> int:
        """Number of values in all streams."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class ColumnReport:
    """Report of one task, or of all tasks of a batch. False if it is empty.

    handling: what happens to values that do not fit: the value of option `mode`, or the metadata column that names
    them; entries: number of entries; bad: per column; absent: columns that none of these
    entries has a field for; names: printable names of the fields of the last entries; tasks: number of the batch's
    tasks.
    """

    handling: str
    entries: int
    bad: Mapping[str, BadValues] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tasks: int = 1

    def __bool__(self) -> bool:
        return bool(self.bad or self.absent)

    @classmethod
    def of_batch(cls, reports: Sequence[Self]) -> Self:
        """Merge the reports of a batch's tasks. Tasks with an empty report send none, so a column is only absent if all
        tasks report it as absent."""
        bad: dict[str, BadValues] = {}
        for column, values in itertools.chain.from_iterable(report.bad.items() for report in reports):
            bad[column] = bad[column] + values if column in bad else values
        tasks = max((report.tasks for report in reports), default=0)
        absent_in = Counter(column for report in reports for column in report.absent)
        absent = tuple(column for column, count in absent_in.items() if count == tasks)
        names = tuple(dict.fromkeys(name for report in reports for name in report.names))[:MAX_NAMES]
        handling = next((report.handling for report in reports), "")
        return cls(handling, sum(report.entries for report in reports), bad, absent, names, tasks)

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        bad = {
            column: {
                "type": values.type,
                "counts": dict(values.counts),
                "first": [values.stream, values.entry, values.value],
            }
            for column, values in self.bad.items()
        }
        return json.dumps({**vars(self), "bad": bad}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the text of `to_json`."""
        report: dict[str, Json] = json.loads(text)
        bad = {
            column: BadValues(values["type"], values["counts"], *values["first"])
            for column, values in report["bad"].items()
        }
        absent, names = tuple(report["absent"]), tuple(report["names"])
        return cls(report["handling"], report["entries"], bad, absent, names, report["tasks"])
