"""What must be there once: the judge (spark_streams/operations/verify/judge.py) for values that have no ID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from spark_streams.operations.verify.history import Outcome, Row
from spark_streams.operations.verify.judge import Facts, Judgement, judge


def once(sent: Iterable[Hashable], found: Iterable[Hashable]) -> Judgement:
    """Judge values that were sent, and values that were found, in any order. One that was sent twice must be found
    twice."""
    times, facts = Counter[Hashable](), dict[tuple[Hashable, int], Facts]()
    for value in sent:
        entry = _nth(value, times[value])
        entry.sent, facts[value, times[value]] = Outcome.OK, entry
        times[value] += 1
    seen = Counter[Hashable]()
    for position, value in enumerate(found):
        nth = min(seen[value], max(times[value] - 1, 0))
        seen[value] += 1
        entry = facts.setdefault((value, nth), _nth(value, nth))
        entry.rows.append(Row(entry.place, (repr(value), nth), 0, 0, 0, position))
    return judge(facts.values())


def _nth(value: Hashable, nth: int) -> Facts:
    return Facts((repr(value), f"0-{nth}"), (repr(value), nth))
