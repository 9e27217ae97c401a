"""The model of the core and the product do the same, and the model loses no entry, reads none twice and stops for no
false reason; and the plans see rules that do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.trigger import observe
from tests.seeds import TIMES
from tools.simulation.core_model import source
from tools.simulation.core_model.facts import Offset, is_older
from tools.simulation.core_model.scenarios import ALIKE, BASE, SCENARIOS, Scenario, differences, failures
from tools.simulation.core_model.source import Source
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product

SERVER = ProcessServer()
# Seeds with which the model goes wrong: it has no rule for what is done to the group between two of its looks.
BEYOND_THE_MODEL = {
    "group moved, amid/lenient": {5, 48},
    "group sought, amid/strict": {8},
    "counter forgotten, amid/strict": {7},
    "group destroyed, shared, amid/lenient": {38},
}
RENEWED = Scenario("new checkpoint", BASE["new checkpoint"])


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    """A client of the server, while the product is patched."""
    with product(SERVER), SERVER.client(decode_responses=True) as made:
        yield made


def kinds(client: redis.Redis, scenario: Scenario, seeds: Iterable[int], is_model: bool = True) -> set[str]:
    """The kinds of what goes wrong in these runs, without what a limit explains."""
    return {failure.kind for seed in seeds for failure in failures(SERVER, client, scenario, seed, is_model)}


@pytest.mark.random
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_only_limits_explain_what_goes_wrong_in_the_model(client: redis.Redis, scenario: Scenario) -> None:
    """It may be killed before and after each of its requests."""
    assert kinds(client, scenario, set(range(3 * TIMES)) - BEYOND_THE_MODEL.get(str(scenario), set())) == set()


@pytest.mark.random
@pytest.mark.parametrize("name", BEYOND_THE_MODEL)
def test_the_product_passes_where_the_model_does_not(client: redis.Redis, name: str) -> None:
    (scenario,) = (one for one in SCENARIOS if str(one) == name)
    assert kinds(client, scenario, BEYOND_THE_MODEL[name], is_model=False) == set()


@pytest.mark.random
@pytest.mark.parametrize("scenario", ALIKE, ids=str)
def test_the_product_does_what_the_model_does(client: redis.Redis, scenario: Scenario) -> None:
    """The same offsets, rows and errors, and at each idle trigger the same group and pending entries."""
    for seed in range(TIMES):
        assert differences(SERVER, client, scenario, seed) == []


def test_an_entry_that_was_taken_and_handed_back_may_be_in_a_replay(client: redis.Redis) -> None:
    """A run of its batch had missed it, as long as another client had it."""
    assert differences(SERVER, client, Scenario("taken", BASE["taken"], in_step=True), 12) == []


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("new checkpoint, taken", 8),  # entries that were handed over look like those that others took from the batch
        ("removed, shared", 18),  # XDEL above the group before the query began, and the same run sees others join
    ],
)
def test_what_seldom_happens_is_alike(client: redis.Redis, name: str, seed: int) -> None:
    """The default run of the random plans does not have these seeds."""
    assert differences(SERVER, client, Scenario(name, BASE[name], in_step=True), seed) == []


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

    def from_zero(self: Source, position: StreamId) -> Offset:
        return replace(begun(self, position), number=0, token="")

    patch.setattr(Source, "_begun", from_zero)


def compares_the_first_batch_with_its_begin(patch: pytest.MonkeyPatch) -> None:
    require_newest = Source._require_newest

    def compared(self: Source, start: Offset, end: Offset) -> None:
        if is_older(start, self._look().mark):
            self._find("CHECKPOINT_OLDER", 0)
        require_newest(self, start, end)

    patch.setattr(Source, "_require_newest", compared)


def test_all_rules_of_a_new_checkpoint_together_stop_no_query(client: redis.Redis) -> None:
    """The same runs as below."""
    assert kinds(client, RENEWED, range(10)) == set()
    assert kinds(client, RENEWED, range(27, 28)) == set()


LOST, OLDER = (
    "false alarm | DataLossError: stream _: the server has lost",
    "false alarm | DataLossError: the checkpoint is",
)


@pytest.mark.parametrize(
    ("breaks", "seed", "kind"),
    [
        (begins_at_the_mark, 27, LOST),
        (keeps_the_mark_of_a_begin, 27, LOST),
        (counts_anew, 1, OLDER),
        (compares_the_first_batch_with_its_begin, 5, OLDER),
    ],
)
def test_a_new_checkpoint_needs_each_of_its_rules(
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    kind: str,
) -> None:
    """Without one of them, some run of a strict query stops although nothing is lost."""
    breaks(monkeypatch)
    assert any(failure.startswith(kind) for failure in kinds(client, RENEWED, range(seed, seed + 1)))


# -- what model and product have in common, and what happens without it ------------------------------------------------


def scenario_of(name: str, in_step: bool = True, strict: bool = True) -> Scenario:
    return Scenario(name, BASE[name], strict, in_step=in_step)


def steps_of(client: redis.Redis, scenario: Scenario, seed: int, is_model: bool) -> tuple[list[Any], list[str]]:
    """The steps of a run, and what goes wrong in it."""
    steps: list[Any] = []
    wrong = failures(SERVER, client, scenario, seed, is_model, steps)
    return steps, [failure.kind for failure in wrong]


def test_a_query_goes_on_where_an_operator_has_set_its_group(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of `rstream groups seek` says so. Otherwise a query that is alone sets its group to the checkpoint."""
    sought = scenario_of("group sought")
    for is_model in (True, False):
        assert kinds(client, sought, range(6), is_model) == set()
    monkeypatch.setattr(source, "moved_since", lambda start, look: None)
    monkeypatch.setattr(observe, "moved_since_checkpoint", lambda *_: None)
    for is_model in (True, False):
        assert kinds(client, sought, range(6), is_model)


@pytest.mark.parametrize("name", ["kills only", "shared", "taken", "removed", "group moved", "new checkpoint"])
def test_the_short_look_changes_no_step(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If a group is as the run has left it, the product asks for less. All else is as if it had looked closely."""
    steps, _ = steps_of(client, scenario_of(name), 0, is_model=False)
    monkeypatch.setattr(observe, "as_left", lambda *_: None)
    assert steps_of(client, scenario_of(name), 0, is_model=False)[0] == steps
