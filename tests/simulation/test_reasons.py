"""Each reason that excuses an entry quotes a page, and each row of the limits has a reason, or excuses no entry of a
plan."""

from __future__ import annotations

import pytest

from tools.side_by_side import ROOT
from tools.simulation.reasons import Reason

_DOCS = ROOT / "docs"
# Rows without a reason: their first words, and why no entry of a plan needs one.
WITHOUT = {
    # -- the query stops, or does more than it must: judged where its errors are (tools/simulation/remedies.py) --------
    "A server is restored under a running query, and has the lease": "the query stops, and no entry is concerned",
    "Several of these happen within one trigger": "a needless error: the operator knows the events",
    "They join the group of a query that was alone": "a needless error: the operator knows the events",
    "deliveries of an uncommitted batch": "nothing is lost",
    "deliveries of a committed batch, alone in the group": "nothing is lost",
    "deliveries of a committed batch, shared group": "the query stops",
    "entries of a committed batch": "the query stops",
    "entries that were not read yet": "the first row of unnoticed.md says the same",
    "rows and the end of their batch together": "the query stops, or it is the second row of unnoticed.md",
    "rows of an incomplete batch": "the query stops, and nothing is twice",
    # -- dead letters: tools/simulation/letters.py judges them ---------------------------------------------------------
    "an outbox together with its dead letter": "letters.py",
    "only the acknowledgement of a dead letter": "letters.py",
    # -- not in a plan -------------------------------------------------------------------------------------------------
    "Redis 7.0 restarts or fails over": "the core model's scenario `counter forgotten` alone: no removal",
    "the ledger, and the checkpoint is an older copy": "the operator takes the remedy that writes no row again",
    "Spark 4.0 and 4.1: the checkpoint's file": "the simulated Spark has no such file",
    "A sink, a retry or a redrive writes to a stream": "no client replaces a stream of the sink",
    "They join such a group, and delete entries": "other consumers of plans delete no entry that they have read",
    "`XCLAIM` of pending entries from a query with `claimIdle`": "it concerns the order, and handed entries have none",
    "`XCLAIM … FORCE`": "no plan forces a claim",
    "`XNACK` of entries of a batch": "plans release entries of others only",
    "Another query takes over pieces": "two drivers claim from each other without that option's cuts",
    "the same of a job": "plans have no `df.write`",
}  # fmt: skip


def rows() -> list[str]:
    """The rows of the limits, and of the losses in a failover."""
    losses = (_DOCS / "reference" / "data-loss.md").read_text().partition("## Losses in a failover")[2]
    lines = [*(_DOCS / "reference" / "unnoticed.md").read_text().splitlines(), *losses.splitlines()]
    heads = ("| case |", "| key |", "| lost |", "|---")
    return [line for line in lines if line.startswith("| ") and not line.startswith(heads)]


def test_each_reason_quotes_a_page() -> None:
    pages = [" ".join(path.read_text().split()) for path in _DOCS.glob("*/*.md")]
    assert [reason.name for reason in Reason if not any(reason.quote in page for page in pages)] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[2:50])
def test_each_row_of_the_limits_has_a_reason_or_excuses_no_entry(row: str) -> None:
    """Not both."""
    has_reason = any(reason.quote in row for reason in Reason)
    assert has_reason != any(row.startswith(f"| {words}") for words in WITHOUT)


def test_what_is_without_a_reason_is_a_row() -> None:
    assert [words for words in WITHOUT if not any(row.startswith(f"| {words}") for row in rows())] == []
