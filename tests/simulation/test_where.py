"""What `rstream where` says of entries of random plans never contradicts the model, and a wrong answer is seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_streams.operations.journey import batches, copies, entry_lines, journey
from spark_streams.operations.journey.entry_facts import EntryFacts
from spark_streams.operations.journey.entry_lines import JourneyLine
from tests.seeds import TIMES
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.soak import soak

SERVER = ProcessServer()
RUNS = 50 * TIMES  # --nightly: 1,000
FIRST = int(os.environ.get("RSTREAM_SEED") or 0)


def contradictions(seeds: range, additions: tuple[str, ...] = ()) -> list[str]:
    """Kinds of wrong answers in these plans, each with its seed and what was said."""
    kinds: list[str] = []
    for tally in soak(SERVER, seeds, additions=(*additions, "where")):
        kinds = [f"scripts/simulate --add where --story {seeds[0]}\n{kind}\n{tally.details[kind]}"
                 for kind, seeds in tally.seeds.items() if kind.startswith("where:")]  # fmt: skip
        if kinds:
            return kinds
    return kinds


def test_no_answer_contradicts_the_model() -> None:
    assert not contradictions(range(FIRST + 1, FIRST + 1 + RUNS))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("seed", "additions"),
    [
        (5469, ("renew",)),  # the query has read the entry from its archive, and not from the group
        (20961, ()),  # a stream that was created again has given an ID a second time
        (7030, ("faults",)),  # the dead letter is in the parking stream
    ],
)
def test_an_answer_that_contradicted_the_model(seed: int, additions: tuple[str, ...]) -> None:
    assert not contradictions(range(seed, seed + 1), additions)


Broken = Callable[[pytest.MonkeyPatch], None]


def says_never_added(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entry_lines, "_absent", lambda *_, **__: JourneyLine("never added", "", ""))


def says_trimmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(entry_lines, "_possible_ends", lambda *_: ["trimmed"])


def counts_wrong(patch: pytest.MonkeyPatch) -> None:
    right = entry_lines._undelivered_line
    wrong: Any = lambda name, facts: right(name, replace(facts, before=(facts.before or 0) + 1))  # noqa: E731
    patch.setattr(entry_lines, "_undelivered_line", wrong)


def sees_no_dead_letter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journey, "dead_letter_streams", lambda server, names: [])


def sees_other_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copies, "_is_same", lambda facts, copy: False)


def says_delivered(patch: pytest.MonkeyPatch) -> None:
    right = journey.group_line
    told: Any = lambda facts, group, proof="": right(facts, group, "a guess")  # noqa: E731
    patch.setattr(journey, "group_line", told)


def is_in_no_batch(patch: pytest.MonkeyPatch) -> None:
    def batch_lines(facts: EntryFacts, *others: object) -> list[JourneyLine]:
        return [JourneyLine("no batch", "", "")]

    patch.setattr(journey, "batch_lines", batch_lines)


def is_not_archived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "find_row", lambda *_: [])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "breaks",
    [
        says_never_added, says_trimmed, counts_wrong, sees_no_dead_letter, sees_other_bytes, says_delivered,
        is_in_no_batch, is_not_archived,
    ],
)  # fmt: skip
def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch, breaks: Broken) -> None:
    breaks(monkeypatch)
    assert contradictions(range(1, 400))
