"""Which entries are suspected of killing the query, what is read next, and who is guilty. Pure.

A run dies of an entry (it raises in the user's code, kills the Python worker, kills the driver), or of something else:
a sink that is away, a machine that is lost. From here both look alike, so that a run has died says nothing. What tells
them apart is what else is committed: an outage strikes whatever is read, and an entry that kills strikes whenever it is
read, and nobody else. So

- a batch that dies too often is cut into pieces that are held apart and read as batches of their own. A piece that
  dies goes to the back of the queue, and is cut when it dies again (at once, while no entry stands alone);
- an entry that stands alone and has died n times waits until n other batches are committed, each at its first
  attempt. The death after that counts again. When it has died six times, and has waited after the sixth, it is given
  up. Of one outage, however long, one death counts at the most: while nothing is committed, nothing is concluded;
- where a batch or a piece that had died is then committed as it is, runs die of something else, and what was counted
  before is void.

So a good entry would be given up if six outages one after the other began just as it was read, each ended before
another batch was, and none touched any of the 21 that were read in between. docs/reference/guarantees.md has the odds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from spark_streams.model.untyped import Json

PIECES = 16
DEATHS = 6  # of an entry alone, until it is given up
_CONTROLS = DEATHS * (DEATHS + 1) // 2  # other batches that are committed in between
_IN_VAIN = 8  # deaths without a commit in between, after which nothing more is cut
_MOST_PIECES = 256  # beside which new entries are read


@dataclass(frozen=True)
class Piece:
    """Entries that are held apart. entries: how many of each stream; died: how often they were read in vain, as far as
    it counts; since: `Book.commits` when they died last; error, message: of what, where somebody could tell; given_up:
    they become letters."""

    entries: Mapping[str, int] = field(default_factory=dict)
    died: int = 0
    since: int = 0
    error: str = ""
    message: str = ""
    given_up: bool = False

    @property
    def count(self) -> int:
        """Entries of all streams."""
        return sum(self.entries.values())


@dataclass(frozen=True)
class Book:
    """What a query remembers, from run to run.

    Of the batch that is being tried. token: its name; runs: how many runs have planned it as it is; run: the last one's
    name; narrowed: some of its entries were set aside, now all of them; aside: what these become, while they are moved
    to pieces of `size` entries.
    Of what is held apart. pieces: by the consumer that holds them, those that died in the order in which they did;
    commits: batches with entries that were committed at their first attempt while something was held; counted: the
    last batch that was looked at for that; vain: deaths since the last commit.
    """

    token: str = ""
    runs: int = 0
    run: str = ""
    narrowed: bool = False
    aside: Piece | None = None
    size: int = 0
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    commits: int = 0
    counted: str = ""
    vain: int = 0

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` wrote. Raises LookupError, TypeError, ValueError for anything else."""
        known: dict[str, Json] = json.loads(text)
        aside = known.pop("aside")
        pieces = {name: Piece(**piece) for name, piece in known.pop("pieces").items()}
        return cls(**known, pieces=pieces, aside=None if aside is None else Piece(**aside))

    def to_json(self) -> str:
        """As it is kept on the server."""
        return json.dumps(asdict(self))

    # -- the batch that is being tried -------------------------------------------------------------------------------

    def of(self, token: str) -> Book:
        """The same for this batch: if it is another one, no run has planned it."""
        return self if token == self.token else replace(self, token=token, runs=0, run="", narrowed=False, aside=None)

    def allows(self, most: int, whole: bool) -> int:
        """How many runs the batch may kill before it is set aside. most: a whole one, where nobody is suspected."""
        if not whole:
            return 1
        return max(most, 2) if self._somebody_alone() else most

    def died(self, count: int, whole: bool, held: Sequence[str], error: str, message: str) -> Book:
        """The batch of `count` entries has died: what becomes of it. held: the consumers of the piece that it was;
        error, message: of what, where that is known."""
        before = next((self.pieces[name] for name in held if name in self.pieces), Piece())
        others = replace(self, pieces={name: other for name, other in self.pieces.items() if name not in held})
        first = whole or before.died > 0 or not others._somebody_alone()
        if count > 1 and first and self.vain < _IN_VAIN:
            size, piece = -(-count // PIECES), Piece()
        else:
            size, piece = count, before
            if before.died == 0 or self._is_due(before):
                piece = replace(piece, died=before.died + 1, since=self.commits)
            if error or message:
                piece = replace(piece, error=error, message=message)
        return replace(others, narrowed=True, aside=replace(piece, entries={}), size=size, vain=self.vain + 1)

    def moved(self, made: Mapping[str, Mapping[str, int]]) -> Book:
        """It was set aside: what each consumer holds now, per stream."""
        assert self.aside is not None
        return replace(
            self,
            pieces={**self.pieces, **{name: replace(self.aside, entries=held) for name, held in made.items()}},
            aside=None,
        )

    def committed(self, token: str, held: Sequence[str], has_rows: bool) -> Book:
        """The batch is in the commit log. held: the consumers of the piece that it was."""
        read = [self.pieces[name] for name in held if name in self.pieces]
        pieces = {name: piece for name, piece in self.pieces.items() if name not in held}
        if token != self.token or token == self.counted or self.narrowed or not has_rows:
            return replace(self, pieces=pieces)
        if self.runs > 1 or any(piece.died for piece in read):
            pieces = {name: Piece(piece.entries) for name, piece in pieces.items()}
            return replace(self, pieces=pieces, counted=token, vain=0)
        return replace(self, pieces=pieces, counted=token, vain=0, commits=self.commits + 1)

    # -- what is held apart ------------------------------------------------------------------------------------------

    def seen(self, there: Mapping[str, Mapping[str, int]], streams: Collection[str]) -> tuple[Book, Counter[str]]:
        """The book with the pieces that are there, and how many entries are missing, per stream. there: per consumer,
        and stream of `streams`, how many entries it holds."""
        missing = Counter[str]()
        pieces: dict[str, Piece] = {}
        for name, piece in self.pieces.items():
            held = there.get(name, {})
            for stream in piece.entries if not piece.given_up else ():
                if stream in streams:
                    missing[stream] += max(0, piece.entries[stream] - held.get(stream, 0))
            if held:
                pieces[name] = replace(piece, entries=held)
        pieces |= {name: Piece(held) for name, held in sorted(there.items()) if name not in self.pieces}
        return replace(self, pieces=pieces), +missing

    def guilty(self) -> Iterator[str]:
        """Who is to be given up."""
        for name, piece in self.pieces.items():
            if piece.given_up or (piece.count == 1 and piece.died >= DEATHS and self._is_due(piece)):
                yield name

    def given_up(self, name: str) -> Book:
        """The same, with this one given up."""
        return replace(self, pieces={**self.pieces, name: replace(self.pieces[name], given_up=True)})

    def without(self, name: str) -> Book:
        """The same without this piece."""
        return replace(self, pieces={other: piece for other, piece in self.pieces.items() if other != name})

    def split(self, name: str, made: Mapping[str, Mapping[str, int]]) -> Book:
        """The same with pieces of this one, which has not died, in its place."""
        return replace(
            self.without(name),
            pieces={**self.without(name).pieces, **{consumer: Piece(held) for consumer, held in made.items()}},
        )

    def too_large(self) -> str | None:
        """The piece that is to be cut before it is read: for an entry alone to wait for, there are too few others."""
        fresh = [name for name, piece in self.pieces.items() if not piece.died]
        if self.vain or not fresh or len(fresh) >= _CONTROLS or not self._somebody_alone():
            return None
        return min(fresh) if self.pieces[min(fresh)].count > 1 else None

    def next(self) -> str | None:
        """The piece that is read next. None: new entries may be, if there are any."""
        due = [name for name, piece in self.pieces.items() if piece.died and self._is_due(piece)]
        fresh = [name for name, piece in self.pieces.items() if not piece.died]
        if due or fresh:
            return due[0] if due else min(fresh)
        return self.last_resort() if len(self.pieces) >= _MOST_PIECES else None

    def last_resort(self) -> str | None:
        """The piece that is read where there is nothing else: one that has not died, or did so before the others."""
        return min(self.pieces, key=lambda name: self.pieces[name].died > 0, default=None)

    def _is_due(self, piece: Piece) -> bool:
        return self.commits - piece.since >= piece.died

    def _somebody_alone(self) -> bool:
        return any(piece.died and piece.count == 1 for piece in self.pieces.values())
