"""Restarts of a query that dies of an entry, or of something else, without a server: does a good entry become a dead
letter, and after how many starts does a killer?

    python -m tools.simulation.poison --restarts 10000000
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending.poison_record import PIECES, PoisonState


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
        state = self.state
        for condemned in list(state.condemned()):
            self.letters += self.held.pop(condemned)
            state = state.give_up(condemned).without(condemned)
        while (large := state.piece_to_cut()) is not None:
            state = state.cut(large, self._move(self.held.pop(large), PIECES))
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
                name = held[0] if held else None
                size = self.state.size_of_pieces(len(entries), not held, name)
                if name is not None:
                    del self.held[name]
                self.state = self.state.set_aside(self._move(entries, -(-len(entries) // size)), name, "", "")
                entries = []
            if not self.away() and not self.poison & set(entries):
                break
            self.starts += 1
            self._arrive()
            if self.starts >= self.most:
                return
        self.rows += entries
        self.state = self.state.after_commit(token, held[0] if held and entries else None, bool(entries))
        for name in held if entries else ():
            del self.held[name]

    def _move(self, entries: list[int], pieces: int) -> dict[str, dict[str, list[Range]]]:
        size = -(-len(entries) // pieces)
        made = {f"{entries[at]:06d}~{self.batches}": entries[at : at + size] for at in range(0, len(entries), size)}
        self.held |= made
        return {name: {"s": [Range("s", id_of(of[0] - 1), id_of(of[-1]), len(of))]} for name, of in made.items()}


def id_of(number: int) -> StreamId:
    return StreamId(number + 1, 0)


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


def starts_to_find(entries: int, killer: int, clean: int) -> int:
    """Return after how many starts the killer is given up. clean: batches that were committed before."""
    query = Query(entries, {killer}, lambda: False, 21, entries + 1_000)
    query.state = PoisonState(clean=clean)
    assert query.run(1_000)
    assert query.letters == [killer]
    return query.starts + 1


def main() -> int:
    """Print how many good entries became dead letters, and how many starts killers take."""
    parser = argparse.ArgumentParser("python -m tools.simulation.poison", description=__doc__)
    parser.add_argument("--restarts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for entries in (1, 100, 10_000, 1_000_000):
        some = sorted({0, entries // 2, entries - 1})
        known, new = (max(starts_to_find(entries, killer, clean) for killer in some) for clean in (1_000, 0))
        print(f"a killer in a batch of {entries}: {known} starts, in a new query {new}")
    restarts = letters = entries_read = 0
    seed = arguments.seed
    while restarts < arguments.restarts:
        chance = random.Random(seed)
        often = chance.choice([0.001, 0.003, 0.01, 0.02, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8])
        entries, arrivals = chance.choice([1, 30, 100, 300]), chance.choice([1, 3, 30])
        query = Query(
            entries, set(), by_chance(chance, often, chance.choice([1, 20])), arrivals, entries + arrivals * 2_000
        )
        query.state = PoisonState(clean=chance.choice([0, 0, 400, 1_000]))
        query.run(2_000)
        restarts += query.starts
        letters += len(query.letters)
        entries_read += len(query.rows)
        if query.letters:
            print(f"seed {seed}: {often} {query.letters}")
        seed += 1
    print(f"{restarts:,} restarts, {entries_read:,} good entries, {letters} of them became dead letters")
    return bool(letters)


if __name__ == "__main__":
    sys.exit(main())
