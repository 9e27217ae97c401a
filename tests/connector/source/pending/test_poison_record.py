"""Which entries are suspected of killing the query and condemned: thousands of restarts, without a server."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending.poison_record import PIECES, Piece, PoisonState
from tests.seeds import seeds
from tools.simulation.poison import Query, by_chance, id_of, starts_to_find


@pytest.mark.random
@pytest.mark.parametrize("entries", [1, 30, 300])
@pytest.mark.parametrize("longest", [1, 20])
@pytest.mark.parametrize("often", [0.03, 0.1, 0.2, 0.3, 0.5, 0.8])
def test_no_good_entry_is_given_up_whatever_else_comes_and_goes(entries: int, longest: int, often: float) -> None:
    for seed in seeds(4):
        chance = random.Random(seed)
        query = Query(entries, set(), by_chance(chance, often, longest), chance.choice([1, 3]), entries + 200)
        query.run(10_000)
        assert query.letters == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(10))
def test_every_entry_that_kills_is_given_up_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    poison = {n for n in range(300) if chance.random() < chance.choice([0.01, 0.1])}
    poison |= set(range(100, 100 + chance.choice([0, 40])))
    query = Query(300, poison, by_chance(chance, chance.choice([0.0, 0.05]), 10), 20, 100_000)
    query.run(40 + 40 * len(poison))
    assert set(query.letters) == poison
    assert len(query.letters) == len(poison)
    assert Counter(query.rows).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("entries", "clean", "starts"),
    [
        *[(1, 1_000, 6), (1, 0, 9), (100, 1_000, 6), (100, 0, 9)],
        *[(10_000, 1_000, 8), (10_000, 0, 11), (1_000_000, 1_000, 10), (1_000_000, 0, 13)],
    ],
)
def test_how_many_starts_it_takes_to_find_a_killer(entries: int, clean: int, starts: int) -> None:
    """The table of the guide has these numbers."""
    assert max(starts_to_find(entries, killer, clean) for killer in {0, entries // 2, entries - 1}) == starts
    page = (Path(__file__).parents[4] / "docs" / "guide" / "dead-letters.md").read_text(encoding="utf-8")
    [row] = re.findall(rf"^\| (?:up to )?{max(entries, 100):,} \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert int(row[clean == 0]) == starts


@pytest.mark.parametrize("entries", [1, 100, 100_000])
@pytest.mark.parametrize("strikes_all", [True, False])
def test_while_nothing_is_committed_no_entry_is_condemned_and_little_is_held(entries: int, strikes_all: bool) -> None:
    """strikes_all: whether what is away strikes batches without entries, too."""
    query = Query(entries, set(), lambda: True, 5, 1 << 30)
    if not strikes_all:
        query.poison = set(range(1 << 20))
        query.away = lambda: False
    query.run(800)  # what is held has its full size after 700
    assert query.letters == query.rows == []
    assert len(query.held) <= 256 + PIECES


def test_a_saved_state_is_read_again_and_one_of_the_first_version_is_refused() -> None:
    piece = Piece({"s": ["0-0 5-0 3 1700"]}, died=2, since=1, began=1, error="E", message="m")
    state = PoisonState("t", 2, "r", True, 30, {"c": piece}, {"d": piece}, 4, "u", 1)
    assert PoisonState.from_json(state.to_json()) == state
    with pytest.raises(LookupError):
        PoisonState.from_json(json.dumps({"token": "t", "runs": 2, "run": "r", "narrowed": True}))


def test_a_piece_is_known_by_its_ranges_and_old_entries_go_around_it() -> None:
    first, second = Range("s", id_of(0), id_of(4), 3, 7), Range("s", id_of(10), id_of(14), 4, 7)
    state = PoisonState(pieces={"a": Piece().of({"s": [second]}), "b": Piece().of({"s": [first], "t": [second]})})
    assert state.piece_of({"s": [replace(second, count=2)]}) == "a"
    assert state.piece_of({"s": [first]}) is None
    assert state.piece_of({}) is None
    assert state.set_aside_in("s") == [first, second]
    assert state.set_aside_in("u") == []


def test_a_batch_is_cut_as_long_as_pieces_of_it_are_held() -> None:
    """An older copy of the checkpoint runs it again after other batches."""
    piece = Piece().of({"s": [Range.parse("s", "0-0 5-0 1 0")]})
    for held in (PoisonState(pieces={"1-1~a-b.0001.0000": piece}), PoisonState(away={"1-1~a-b.0001": piece})):
        assert held.for_batch("a-c").for_batch("a-b").narrowed
        assert not held.for_batch("a-c").narrowed
    assert not PoisonState(token="a-c").for_batch("a-b").narrowed
