"""The report of a run: its verdict needs evidence, and no text in it reaches a page or a terminal raw."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spark_streams.operations.verify.judge import Facts, Fault, Judgement
from spark_streams.operations.verify.result import BROKEN, HELD, UNPROVED, RunResult, Sum, page

HOSTILE = "<script>\x1b[31m&"


def result() -> RunResult:
    return RunResult(
        Judgement(), {"entries": 10, "kills of the driver": 1}, {"not tried": {"failover": "it was not asked for"}}
    )


def test_a_run_without_faults_holds() -> None:
    good = result()
    assert good.verdict == HELD
    assert str(good).startswith("lost 0 · twice 0 · out of order 0 · acknowledged early 0 · left pending 0\n")
    assert "it was not asked for" in str(good)


@pytest.mark.parametrize("name", ["entries", "kills of the driver"])
def test_a_run_without_evidence_proves_nothing(name: str) -> None:
    unproved = replace(result(), evidence={**result().evidence, name: 0})
    assert unproved.verdict == UNPROVED
    assert f"nothing is proved: no {name}." in unproved.sentence


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Fault.LOST, "lost"),
        (Fault.TWICE, "twice"),
        (Fault.REORDERED, "out of order"),
        (Fault.EARLY, "acknowledged early"),
        (Fault.PENDING, "left pending"),
        (Fault.PHANTOM, "sent by nobody"),
        (Fault.CHANGED, "changed replay"),
    ],
)
def test_each_kind_of_fault_breaks_the_verdict_and_is_named_by_its_ids(kind: Fault, name: str) -> None:
    report = Judgement({kind: [Facts(("s", "1-1"))]})
    broken = replace(result(), report=report)
    assert (broken.verdict, broken.counts[name]) == (BROKEN, 1)
    assert f"{name} 1" in str(broken)
    assert "s 1-1" in str(broken)
    assert broken.for_json()["faults"] == {kind: ["s 1-1"]}


def test_a_query_that_did_not_read_everything_breaks_the_verdict() -> None:
    broken = replace(result(), cause="The query did not read everything: [RSTREAM_LEDGER] lost")
    assert broken.verdict == BROKEN
    assert "[RSTREAM_LEDGER]" in broken.sentence


def test_the_page_escapes_everything_and_loads_nothing() -> None:
    report = Judgement({Fault.LOST: [Facts(("s", "1-1"), (HOSTILE, 1))]})
    text = page(RunResult(report, {HOSTILE: 0}, {HOSTILE: {HOSTILE: HOSTILE}}, HOSTILE))
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") == 6
    assert not re.search(r"https?:|src=|@import|url\(", text)


def test_adds_whose_reply_was_lost_have_a_line_and_the_sum_is_an_equation() -> None:
    """26,664 confirmed entries have 26,165 rows and 529 dead letters: the reply to 30 adds was lost."""
    held = replace(result(), sum=Sum(26_664, 30, 26_165, 529, not_added=4))
    assert held.verdict == HELD
    assert "26,664 + 30 = 26,165 + 529" in str(held)
    assert "30 (and 4 adds without a reply are not there)" in str(held)
    assert held.for_json()["sum"] == {
        **{"confirmed": 26_664, "unconfirmed": 30, "rows": 26_165, "dead_letters": 529},
        **{"not_added": 4, "difference": 0},
    }
    assert "26,664 + 30 = 26,165 + 529" in page(held)


@pytest.mark.parametrize("unconfirmed", [29, 31])
def test_a_difference_fails_the_run(unconfirmed: int) -> None:
    broken = replace(result(), sum=Sum(26_664, unconfirmed, 26_165, 529))
    assert broken.verdict == BROKEN
    assert f"26,664 + {unconfirmed} ≠ 26,165 + 529" in broken.sentence
