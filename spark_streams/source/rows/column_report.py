"""What tasks find out about declared columns: values that do not fit, columns that no entry has a field for. Pure."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from spark_streams.model.ids import StreamId
from spark_streams.model.untyped import Json

MOST_NAMES = 100  # of fields that a report carries


@dataclass(frozen=True)
class BadValues:
    """Values of one column that do not fit. type: the declared one, as SQL calls it; counts: how many, per stream;
    stream, entry, value: the first one's, the value as Python shows it."""

    type: str
    counts: Mapping[str, int]
    stream: str
    entry: str
    value: str

    def __add__(self, other: BadValues) -> BadValues:
        first = min(self, other, key=lambda one: (StreamId.parse(one.entry), one.stream))
        return replace(first, counts=Counter(self.counts) + Counter(other.counts))

    @property
    def count(self) -> int:
        """In all streams."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class ColumnReport:
    """What one task has to say, or all of a batch. Not true where that is nothing.

    mode: of reading; entries: how many it is about; bad: per column; absent: columns that none of these entries has a
    field for; names: of fields that the last of them have, as texts for people; tasks: how many the batch has.
    """

    mode: str
    entries: int
    bad: Mapping[str, BadValues] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tasks: int = 1

    def __bool__(self) -> bool:
        return bool(self.bad or self.absent)

    @classmethod
    def of_batch(cls, reports: Sequence[Self]) -> Self:
        """One for all tasks of a batch. Those that have nothing to say send none: absent is what all tasks call so."""
        bad: dict[str, BadValues] = {}
        for column, values in itertools.chain.from_iterable(one.bad.items() for one in reports):
            bad[column] = bad[column] + values if column in bad else values
        tasks = max((one.tasks for one in reports), default=0)
        told = Counter(column for one in reports for column in one.absent)
        absent = tuple(column for column, count in told.items() if count == tasks)
        names = tuple(dict.fromkeys(name for one in reports for name in one.names))[:MOST_NAMES]
        mode = next((one.mode for one in reports), "")
        return cls(mode, sum(one.entries for one in reports), bad, absent, names, tasks)

    def to_json(self) -> str:
        """As `from_json` reads it."""
        bad = {
            column: {"type": one.type, "counts": dict(one.counts), "first": [one.stream, one.entry, one.value]}
            for column, one in self.bad.items()
        }
        told = {**vars(self), "bad": bad}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` has written."""
        told: dict[str, Json] = json.loads(text)
        bad = {column: BadValues(one["type"], one["counts"], *one["first"]) for column, one in told["bad"].items()}
        return cls(told["mode"], told["entries"], bad, tuple(told["absent"]), tuple(told["names"]), told["tasks"])
