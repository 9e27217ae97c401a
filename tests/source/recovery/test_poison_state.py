"""Which entries are suspected of killing the query and condemned: thousands of restarts, without a server."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_streams.source.recovery.poison_state import DEATHS, PIECES, Piece, PoisonState
from tests.seeds import seeds


class Query:
    """A query over one stream that is started again whenever it dies. away: whether something else is away now."""

    def __init__(self, entries: int, poison: set[int], away: Callable[[], bool], arrivals: int, total: int) -> None:
        self.new = list(range(entries))
        self.poison, self.away, self.arrivals, self.total = poison, away, arrivals, total
        self.added = entries
        self.held: dict[str, list[int]] = {}
        self.state = PoisonState()
        self.letters: list[int] = []
        self.rows: list[int] = []
        self.starts = self.batches = self.suspects = 0
        self.most = 0

    def run(self, starts: int) -> bool:
        """Whether all there is was read, in so many starts."""
        self.most = starts
        while self.starts < starts:
            self._arrive()
            entries, held = self._next()
            if entries is None:
                if self.added >= self.total:
                    return True
                continue
            self._batch(entries, held)
        return False

    def _arrive(self) -> None:
        more = min(self.arrivals, self.total - self.added)
        self.new += range(self.added, self.added + more)
        self.added += more

    def _next(self) -> tuple[list[int] | None, list[str]]:
        state, missing = self.state.with_held({name: {"s": len(of)} for name, of in self.held.items()}, {"s"})
        assert not missing
        for name in list(state.condemned()):
            self.letters += self.held.pop(name)
            state = state.give_up(name).without(name)
        while (name := state.piece_to_cut()) is not None:
            state = state.cut(name, self._move(self.held.pop(name), PIECES))
        self.state = state
        name = state.next_piece()
        if name is None and self.new:
            count = -(-len(self.new) // PIECES) if self.held else len(self.new)
            entries, self.new = self.new[:count], self.new[count:]
            return entries, []
        name = name or state.fallback_piece()
        return (None, []) if name is None else (self.held[name], [name])

    def _batch(self, entries: list[int], held: list[str]) -> None:
        """Until it is committed."""
        self.batches += 1
        token = str(self.batches)
        self.state = self.state.for_batch(token)
        while True:
            died = self.state.runs
            self.state = replace(self.state, runs=died + 1)
            if entries and died and died >= self.state.allowed_deaths(2, is_unchanged=not held):
                self.suspects += len(entries) == 1
                self.state = self.state.set_aside(len(entries), not held, held, "", "")
                for name in held:
                    del self.held[name]
                self.state = self.state.with_pieces(self._move(entries, -(-len(entries) // self.state.size)))
                entries = []
            if not self.away() and not self.poison & set(entries):
                break
            self.starts += 1
            self._arrive()
            if self.starts >= self.most:
                return
        self.rows += entries
        self.state = self.state.after_commit(token, held, bool(entries))
        for name in held if entries else ():
            del self.held[name]

    def _move(self, entries: list[int], pieces: int) -> dict[str, dict[str, int]]:
        size = -(-len(entries) // pieces)
        made = {f"{entries[at]:06d}~{self.batches}": entries[at : at + size] for at in range(0, len(entries), size)}
        self.held |= made
        return {name: {"s": len(of)} for name, of in made.items()}


def by_chance(chance: random.Random, often: float, longest: int) -> Callable[[], bool]:
    """Outages that begin at random and last for up to so many batches."""
    left = 0

    def away() -> bool:
        nonlocal left
        if not left and chance.random() < often:
            left = chance.randint(1, longest)
        struck = left > 0
        left -= struck
        return struck

    return away


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


@pytest.mark.parametrize(("entries", "levels"), [(1, 0), (16, 0), (256, 1), (4_096, 2), (1_000_000, 4)])
def test_how_many_restarts_it_takes_to_find_a_killer(entries: int, levels: int) -> None:
    for killer in (0, entries // 2, entries - 1):
        query = Query(entries, {killer}, lambda: False, 21, entries + 1_000)
        assert query.run(1_000)
        assert query.letters == [killer]
        assert query.starts <= 3 + levels + DEATHS
        assert len(query.rows) == entries + 999


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
    state = PoisonState(
        "t", 2, "r", True, Piece(died=1, error="E"), 7, {"c": Piece({"s": 3}, 2, 1, "E", "m")}, 4, "u", 1
    )
    assert PoisonState.from_json(state.to_json()) == state
    with pytest.raises(LookupError):
        PoisonState.from_json(json.dumps({"token": "t", "runs": 2, "run": "r", "narrowed": True}))
