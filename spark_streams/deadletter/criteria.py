"""Which dead letters are meant, and why none is. Pure: pages in, masks out."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.page import KIND, DeadLetterPage, by_value
from spark_streams.errors import InvalidOptionError
from spark_streams.model.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.options.values import duration
from spark_streams.wire.entries.lines import Mask

T = TypeVar("T")

_NAMED = 10  # values, in a message


@dataclass(frozen=True)
class Criteria:
    """All must hold; of several texts for one name, any. What is not given holds.

    streams, reasons, stages, errors: `dl.stream` …, with * ? [] as in file names, a reason also by what stands before
    its colon (`decode` means `decode: amount is no DOUBLE`); fields: (name, value) of original
    fields; first, last: bounds of the dead letters' own ids; older, newer: their age in milliseconds.
    """

    streams: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    older: int | None = None
    newer: int | None = None

    def range(self, now: int) -> tuple[StreamId, StreamId]:
        """(first, last) id of dead letters that can be meant; now: the server's clock, ms since the epoch."""
        first, last = self.first, self.last
        if self.newer is not None:
            first = max(first, StreamId(max(now - self.newer, 0), 0))
        if self.older is not None:
            last = min(last, StreamId(max(now - self.older, 0), 0))
        return first, last

    @property
    def everything(self) -> bool:
        """Whether every dead letter within the range is meant."""
        return not (self.streams or self.reasons or self.stages or self.errors or self.fields)

    def mask(self, page: DeadLetterPage) -> Mask:
        """Per row, whether it is meant (its id aside)."""
        found = np.ones(page.count, np.bool_)
        told = {"stream": self.streams, "reason": self.reasons, "stage": self.stages, "error": self.errors}
        for name, patterns in told.items():
            if patterns:
                found &= by_value(page.told(name), partial(means, name, patterns)).astype(bool)
        for name, value in self.fields:
            same = pc.equal(page.field(raw(name)), raw(value))
            found &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return found


def parse_criteria(
    streams: Sequence[str] = (),
    reasons: Sequence[str] = (),
    stages: Sequence[str] = (),
    errors: Sequence[str] = (),
    fields: Sequence[str] = (),
    first: str | None = None,
    last: str | None = None,
    older: str | None = None,
    newer: str | None = None,
) -> Criteria:
    """What people type. fields: NAME=VALUE; first, last: ids; older, newer: `90m`, `7d`. Raises InvalidOptionError."""
    pairs = [field.partition("=") for field in fields]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidOptionError(f"field {name!r} is not NAME=VALUE")
    return Criteria(
        tuple(streams),
        tuple(reasons),
        tuple(stages),
        tuple(errors),
        tuple((name, value) for name, _, value in pairs),
        MIN_ID if first is None else _parsed("first id", StreamId.parse, first),
        MAX_ID if last is None else _parsed("last id", partial(StreamId.parse, missing_seq=U64_MAX), last),
        None if older is None else _parsed("older", duration, older),
        None if newer is None else _parsed("newer", duration, newer),
    )


def _parsed(what: str, parse: Callable[[str], T], given: str) -> T:
    try:
        return parse(given)
    except ValueError as error:
        raise InvalidOptionError(f"{what}={given[:100]!r}: {error}") from None


def means(name: str, patterns: Sequence[str], value: str) -> bool:
    """Whether a value of the envelope is meant by one of these. A reason's category is what stands before `: `."""
    return matches(patterns, value) or (name == "reason" and matches(patterns, value.partition(": ")[0]))


def matches(patterns: Sequence[str], value: str) -> bool:
    """Whether the value is one of these, or fits one of them as a file's name would."""
    return any(value == pattern or fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def why_none_is_meant(stream: str, criteria: Criteria, counts: KindCounts) -> str:
    """One sentence. counts: all dead letters of the stream, by KIND."""
    if not counts.letters:
        return f"{stream} holds no dead letters; rstream dead list names the streams that do"
    asked = {
        "stream": criteria.streams, "stage": criteria.stages, "reason": criteria.reasons, "error": criteria.errors
    }  # fmt: skip
    for name, patterns in asked.items():
        there: Counter[str] = Counter()
        for kind, count in counts:
            there[kind[KIND.index(name)]] += count.letters
        if patterns and not any(means(name, patterns, value) for value in there):
            wanted = " or ".join(map(repr, patterns))
            return f"no dead letter of {stream} has {name} {wanted}; there are: {_listed(there)}"
    return (
        f"none of the {counts.letters:,} dead letters of {stream} is all that was asked for; "
        f"rstream dead list {stream} counts them by kind"
    )


def _listed(there: Counter[str]) -> str:
    named = [f"{value or '(none)'} ({letters:,})" for value, letters in there.most_common(_NAMED)]
    more = len(there) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")
