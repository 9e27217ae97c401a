"""Why a choice of dead letters means none of them: the value that none has, and those that there are. Pure."""

from __future__ import annotations

from collections import Counter

from spark_streams.deadletter.criteria import Criteria, means
from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.page import KIND

_NAMED = 10  # values


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
