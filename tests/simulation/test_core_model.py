"""The model of the core and the product do the same, lose no entry, read none twice and stop for no false reason; and
the histories see rules that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_streams.connector.source.trigger import observe
from tests.seeds import TIMES
from tools.day_seed import first_seed
from tools.simulation.core_model import source
from tools.simulation.core_model.clients import InProcess, Scenario
from tools.simulation.core_model.facts import Id, Look, Offset, is_older
from tools.simulation.core_model.product import Product, differences, trace_of
from tools.simulation.core_model.scenarios import ALIKE, BASE, OF_THE_PRODUCT, SCENARIOS, kind_of, limit_of
from tools.simulation.core_model.source import Source
from tools.simulation.core_model.world import MODEL, Model, World

NAMES = sorted({scenario.name for scenario in SCENARIOS})
SERVER = InProcess()
PRODUCT = Product(SERVER)
SEEDS_OF_ALL = min(TIMES, 3)  # of later seeds, one in some hundred histories is neither clean nor explained by a limit
RENEWED, SEEDS = Scenario("new checkpoint", BASE["new checkpoint"]), 15


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    """Its patches take as long as a history."""
    with PRODUCT.installed():
        yield PRODUCT


def failures(scenario: Scenario, seeds: range, subject: Model | Product = MODEL) -> set[str]:
    """The kinds of what goes wrong in these histories, without what a limit explains."""
    kinds: set[str] = set()
    for seed in seeds:
        world = World(SERVER, seed, scenario, subject)
        world.run()
        kinds |= {kind for kind in map(kind_of, world.wrong) if not limit_of(kind)}
    return kinds


@pytest.mark.random
@pytest.mark.parametrize("name", NAMES)
def test_only_limits_explain_what_goes_wrong(name: str) -> None:
    """Strict and lenient, in the model."""
    for scenario in (one for one in SCENARIOS if one.name == name):
        assert failures(scenario, range(SEEDS_OF_ALL)) == set(), scenario


@pytest.mark.random
@pytest.mark.parametrize("scenario", ALIKE, ids=str)
def test_the_product_does_what_the_model_does(product: Product, scenario: Scenario) -> None:
    """The same offsets, rows and errors, and at each idle trigger the same group and pending entries."""
    for seed in range(TIMES):
        assert differences(product, seed, scenario) == []


@pytest.mark.random
@pytest.mark.parametrize("name", sorted({scenario.name for scenario in OF_THE_PRODUCT}))
def test_only_limits_explain_what_goes_wrong_in_the_product(product: Product, name: str) -> None:
    """It may be killed before and after each of its requests. One of the modes a day, or all with more seeds."""
    scenarios = [scenario for scenario in OF_THE_PRODUCT if scenario.name == name]
    for scenario in scenarios if TIMES > 1 else [scenarios[first_seed() % len(scenarios)]]:
        assert failures(scenario, range(SEEDS_OF_ALL), product) == set(), scenario


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
    require_newest = Source._require_newest

    def compared(self: Source, start: Offset, end: Offset) -> None:
        if is_older(start, self._look().mark):
            self._find("CHECKPOINT_OLDER", 0)
        require_newest(self, start, end)

    patch.setattr(Source, "_require_newest", compared)


def test_all_rules_of_a_new_checkpoint_together_stop_no_query() -> None:
    """The same histories as below."""
    assert failures(RENEWED, range(SEEDS)) == set()


@pytest.mark.parametrize(
    ("breaks", "first", "kind"),
    [
        (begins_at_the_mark, 0, "false alarm ENTRIES_LOST"),
        (keeps_the_mark_of_a_begin, 25, "read twice"),
        (counts_anew, 0, "false alarm CHECKPOINT_OLDER"),
        (compares_the_first_batch_with_its_begin, 29, "false alarm CHECKPOINT_OLDER"),
    ],
)
def test_a_new_checkpoint_needs_each_of_its_rules(
    monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None], first: int, kind: str
) -> None:
    """Without one of them, some history of a strict query stops although nothing is lost, or reads an entry twice."""
    breaks(monkeypatch)
    assert any(failure.startswith(kind) for failure in failures(RENEWED, range(first, first + SEEDS)))


# -- what model and product have in common, and what happens without it ------------------------------------------------


def scenario_of(name: str, in_step: bool = True, strict: bool = True) -> Scenario:
    return Scenario(name, BASE[name], strict, in_step=in_step)


def test_a_server_that_forgets_its_counter_is_counted_again(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a query of a shared group stops after a failover of Redis 7.0, although nothing is lost."""
    forgotten = scenario_of("counter forgotten", in_step=False)
    for subject in (MODEL, product):
        silent = [seed for seed in range(6) if not stops_of(forgotten, seed, subject)]
        with monkeypatch.context() as patch:
            patch.setattr(source, "has_forgotten", lambda start, look: False)
            patch.setattr(observe, "has_forgotten", lambda at, look: False)
            assert [seed for seed in silent if stops_of(forgotten, seed, subject)]


def stops_of(scenario: Scenario, seed: int, subject: Model | Product) -> int:
    """How often the query of this history stops."""
    world = World(SERVER, seed, scenario, subject)
    world.run()
    return world.counts["stops"]


def test_a_query_goes_on_where_an_operator_has_set_its_group(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of `rstream groups seek` says so. Otherwise a query that is alone sets its group to the checkpoint."""
    sought = scenario_of("group sought")
    for subject in (MODEL, product):
        assert failures(sought, range(3), subject) == set()
    monkeypatch.setattr(source, "moved_since", lambda start, look: None)
    monkeypatch.setattr(observe, "moved_since_checkpoint", lambda *_: None)
    for subject in (MODEL, product):
        assert failures(sought, range(6), subject) == {"silent loss handed over, nothing"}


@pytest.mark.parametrize("name", ["kills only", "shared", "taken", "removed", "group moved", "new checkpoint"])
def test_the_short_look_changes_no_step(product: Product, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If a group is as the run has left it, the product asks for less. All else is as if it had looked closely."""
    steps, _ = trace_of(product, 0, scenario_of(name), is_model=False)
    monkeypatch.setattr(observe, "as_left", lambda *_: None)
    assert trace_of(product, 0, scenario_of(name), is_model=False)[0] == steps


def test_entries_released_since_a_short_look_are_read_a_trigger_later(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XINFO GROUPS counts them like entries of the query, so only a close look shows them. None is lost."""
    released = scenario_of("released", strict=False)
    steps, wrong = trace_of(product, 0, released, is_model=False)
    monkeypatch.setattr(observe, "as_left", lambda *_: None)
    monkeypatch.setattr(Source, "_as_left", lambda self, start, look: look)
    closely, also_wrong = trace_of(product, 0, released, is_model=False)
    assert steps != closely
    assert trace_of(product, 0, released, is_model=True)[0] == closely
    assert [*wrong, *also_wrong] == []


def test_the_account_in_a_group_that_exists_is_counted_in_the_stream(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise entries that were removed before it began are a loss to a new checkpoint, again and again."""
    removed = scenario_of("new checkpoint, removed")
    for subject in (MODEL, product):
        assert failures(removed, range(3), subject) == set()

    def unknown(self: Source, position: Id, look: Look) -> tuple[int | None, int]:
        return None, 0

    monkeypatch.setattr(Source, "_read_before", unknown)
    assert failures(removed, range(25)) == {"stopped again ENTRIES_LOST, new checkpoint"}
