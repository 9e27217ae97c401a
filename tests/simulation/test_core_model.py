"""The model of the core loses no entry, reads none twice and stops for no false reason; and it sees rules that do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.seeds import TIMES
from tools.simulation.core_model.facts import Id, Offset, is_older
from tools.simulation.core_model.scenarios import BASE, SCENARIOS, kind_of, limit_of
from tools.simulation.core_model.source import Source
from tools.simulation.core_model.world import EngineServer, Scenario, World

NAMES = sorted({scenario.name for scenario in SCENARIOS})
SERVER = EngineServer()
RENEWED, SEEDS = Scenario("new checkpoint", BASE["new checkpoint"]), 15


def failures(scenario: Scenario, seeds: range) -> set[str]:
    """The kinds of what goes wrong in these histories, without what a limit explains."""
    kinds: set[str] = set()
    for seed in seeds:
        world = World(SERVER, seed, scenario)
        world.run()
        kinds |= {kind for kind in map(kind_of, world.wrong) if not limit_of(kind)}
    return kinds


@pytest.mark.random
@pytest.mark.parametrize("name", NAMES)
def test_only_limits_explain_what_goes_wrong(name: str) -> None:
    """Strict and lenient, on the engine in this process."""
    for scenario in (one for one in SCENARIOS if one.name == name):
        assert failures(scenario, range(2 * TIMES)) == set(), scenario


def begins_at_the_mark(patch: pytest.MonkeyPatch) -> None:
    initial_offset = Source.initial_offset

    def at_the_mark(self: Source) -> Offset:
        start, mark = initial_offset(self), self._look().mark
        return replace(start, position=mark.id) if mark else start

    patch.setattr(Source, "initial_offset", at_the_mark)


def keeps_the_mark_of_a_begin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Source, "_begin_batches", lambda self, end: None)


def counts_anew(patch: pytest.MonkeyPatch) -> None:
    begun = Source._begun

    def from_zero(self: Source, position: Id) -> Offset:
        return replace(begun(self, position), number=0, token="")

    patch.setattr(Source, "_begun", from_zero)


def compares_the_first_batch_with_its_begin(patch: pytest.MonkeyPatch) -> None:
    replayed = Source._replayed

    def compared(self: Source, start: Offset, end: Offset) -> None:
        if is_older(start, self._look().mark):
            self._find("CHECKPOINT_OLDER", 0)
        replayed(self, start, end)

    patch.setattr(Source, "_replayed", compared)


def test_all_rules_of_a_new_checkpoint_together_stop_no_query() -> None:
    """The same histories as below."""
    assert failures(RENEWED, range(SEEDS)) == set()


@pytest.mark.parametrize(
    ("breaks", "kind"),
    [
        (begins_at_the_mark, "false alarm ENTRIES_LOST"),
        (keeps_the_mark_of_a_begin, "false alarm ENTRIES_LOST"),
        (counts_anew, "false alarm CHECKPOINT_OLDER"),
        (compares_the_first_batch_with_its_begin, "false alarm CHECKPOINT_OLDER"),
    ],
)
def test_a_new_checkpoint_needs_each_of_its_rules(
    monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None], kind: str
) -> None:
    """Without one of them, some history of a strict query stops although nothing is lost."""
    breaks(monkeypatch)
    assert any(failure.startswith(kind) for failure in failures(RENEWED, range(SEEDS)))
