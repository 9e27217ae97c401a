"""The judge finds each fault from the facts of one entry, a reason of that entry excuses it, and no other one does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_streams.operations.verify.history import Outcome, Row
from spark_streams.operations.verify.judge import Counted, Facts, Fault, judge
from tools.once import once
from tools.side_by_side import ROOT

WHY = frozenset({"a reason"})


def entry(n: int, rows: int = 1, **more: object) -> Facts:
    """An entry that was sent, with so many rows in batch n."""
    place = ("s", f"{n}-0")
    arrived = [Row(place, ("p", n), n, 0, 0, 10 * n + at) for at in range(rows)]
    return replace(Facts(place, ("p", n), Outcome.OK, arrived), **more)  # type: ignore[arg-type]


def strange(n: int) -> Facts:
    return replace(entry(n), value=None, sent=None)


LATE = [entry(2, rows=0), entry(5)]
LATE[0].rows = [Row(LATE[0].place, ("p", 2), 9, 0, 0, 0)]
TRIED = Row(("s", "1-0"), ("p", 1), 3, 0, 0, 0, kept=False)


@pytest.mark.parametrize(
    ("fault", "facts", "excuse"),
    [
        (Fault.LOST, [entry(1, rows=0)], "may_miss"),
        (Fault.SILENT, [entry(1, rows=0, after=frozenset({"deleted"}))], "may_miss"),
        (Fault.TWICE, [entry(1, rows=2)], "may_repeat"),
        (Fault.TWICE, [entry(1, letters=1, is_bad=True)], "may_repeat"),
        (Fault.TWICE, [entry(1, rows=0, letters=2, is_bad=True)], "may_repeat"),
        (Fault.PHANTOM, [strange(1)], ""),
        (Fault.PHANTOM, [entry(1, sent=Outcome.FAILED)], ""),
        (Fault.PHANTOM, [entry(1, value=("q", 1), sent=Outcome.UNKNOWN)], ""),
        (Fault.REORDERED, LATE, "may_reorder"),
        (Fault.EARLY, [entry(1, acknowledged=[0])], ""),
        (Fault.EARLY, [entry(1, rows=0, sent=None, acknowledged=[1])], "may_miss"),
        (Fault.PENDING, [entry(1, is_pending=True)], "may_wait"),
        (Fault.BURIED, [entry(1, rows=0, letters=1)], ""),
        (Fault.CHANGED, [entry(1, tried=[TRIED])], "may_miss"),
        (Fault.UNSEEN, [entry(1, acknowledged=[])], "may_miss"),
        (Fault.FALSE_ALARM, [Facts(("s", ""), is_reported=True)], "may_count"),
    ],
)  # fmt: skip
def test_a_reason_of_the_entry_alone_excuses_a_fault(fault: Fault, facts: list[Facts], excuse: str) -> None:
    assert judge(facts).counts() == {str(fault): 1}
    others = [entry(20, may_miss=WHY, may_repeat=WHY, may_reorder=WHY, may_wait=WHY, may_count=WHY)]
    assert judge(facts + others).counts() == {str(fault): 1}
    for name in {"may_miss", "may_repeat", "may_reorder", "may_wait", "may_count"} - {excuse}:
        assert judge([replace(one, **{name: WHY}) for one in facts]).counts() == {str(fault): 1}  # type: ignore[arg-type]
    if excuse:
        excused = judge([replace(facts[0], **{excuse: WHY}), *facts[1:]])  # type: ignore[arg-type]
        assert not excused
        assert excused.used == {WHY: 1}


@pytest.mark.parametrize(
    ("counted", "faults"),
    [
        (Counted(2), {}),
        (Counted(1), {"uncounted": 2}),
        (Counted(1, at_least=True), {}),
        (Counted(0, at_least=True), {"uncounted": 2}),
        (Counted(4), {}),  # one more that may be missed, and one that may be counted
        (Counted(5), {"counted too much": 2}),
        (Counted(5, again=1), {}),
        (Counted(5, at_least=True), {}),
        (Counted(5, may_repeat=True), {}),
        (Counted(1, stops=True), {"lost": 1}),
        (Counted(0, stops=True), {"lost": 2}),
        (Counted(1, at_least=True, stops=True), {}),
    ],
)
def test_what_a_query_has_counted_is_assigned_to_what_must_be_reported(
    counted: Counted, faults: dict[str, int]
) -> None:
    missing = [entry(1, rows=0), entry(2, rows=0), entry(3, rows=0, may_miss=WHY, may_count=WHY)]
    there = [entry(4, may_count=WHY), entry(5), entry(6, rows=0, is_reported=True), entry(7, rows=0, may_miss=WHY)]
    assert judge(missing + there, {"s": counted}).counts() == faults


def test_a_count_where_nothing_is_missing_is_too_much() -> None:
    assert judge([entry(1)], {"s": Counted(1)}).counts() == {"counted too much": 1}


def test_values_without_ids_must_be_there_as_often_as_they_were_sent() -> None:
    assert not once([1, 2, 2, "2"], [2, 1, "2", 2])
    assert once([1, 2, 2], [1, 1, 2, 3]).counts() == {"lost": 1, "twice": 1, "phantom": 1}


# -- there is no other judge -------------------------------------------------------------------------------------------


# A failure that is named like a fault, in another way than by `Fault`.
_NAMED = re.compile(r"^(lost|silent|uncounted|counted too much|twice|phantom|reordered|early|pending|false alarm) \|")
# What follows entries through kills, faults and random lives to where they arrive: each has the judge's word.
FOLLOWS = {
    "spark_streams/operations/verify/verify_run.py",
    *(f"tools/{name}.py" for name in ("chaos/drivers", "chaos/stage", "outputs/life", "soak/report")),
    *(f"tools/simulation/{name}.py" for name in ("drivers", "remedies", "verdict", "world")),
    *(f"tests/connector/{name}.py" for name in ("sink/test_soak", "source/group/test_retries_at_random")),
    "tests/connector/source/pending/test_poison_batch_at_random.py",
    *(f"tests/legs/redis_cluster/{name}.py" for name in ("piping", "test_job")),
    *(f"tests/legs/{name}.py" for name in ("engine_pyspark/test_engine", "sentinel/test_long", "upgrade/test_upgrade")),
    *(f"tests/{name}.py" for name in ("jobs/test_jobs", "piping")),
}


def counters_compared(tree: ast.AST) -> Iterator[int]:
    """Lines with a comparison or a difference of a Counter of rows."""
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else []
        for side in sides:
            if isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "Counter":
                yield side.lineno


def test_no_other_module_decides_what_is_lost_or_twice() -> None:
    users, found = set[str](), []
    for path in (path for folder in ("spark_streams", "tools", "tests") for path in (ROOT / folder).rglob("*.py")):
        tree, name = ast.parse(path.read_text()), str(path.relative_to(ROOT))
        is_user = any(
            isinstance(node, ast.Name) and node.id in ("judge", "check_history", "once") for node in ast.walk(tree)
        )
        users |= {name} if is_user else set()
        if is_user or name.startswith("tools/"):
            constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            texts = [value for value in constants if isinstance(value, str)]
            found += [f"{name}: {text!r}" for text in texts if _NAMED.match(text)]
            found += [f"{name}:{line}: compares counters" for line in counters_compared(tree)]
    assert found == []
    assert FOLLOWS - users == set()
