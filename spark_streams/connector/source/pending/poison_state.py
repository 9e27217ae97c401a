"""State of the search for an entry that kills the query: which piece is read next, which entry is condemned. Pure.

A run dies of an entry (the user's code raises, the Python worker or the driver is killed), or of something else: the
sink is away, a machine is lost. Both look alike in the death of one run. Commits of other batches tell them apart: an
outage strikes every batch, and an entry that kills strikes every batch that reads it, and no other. So

- A batch that dies too often is cut into pieces, up to 128 entries into single entries. Each piece is set aside and is
  read as a batch of its own. A piece that dies goes to the back of the queue. It is cut when it dies again, or at once
  if no piece has a single entry.
- A piece with a single entry that has died n times waits until n other batches are committed, each at its first
  attempt. Only then does its next death count. After six deaths and the wait after the sixth, the entry is given up. Of
  one outage, however long, one death counts at most: while nothing is committed, nothing is concluded.
- If a batch or piece that has died is committed unchanged, runs die of something else. Earlier deaths no longer count.
- Where runs hardly ever die of something else, fewer deaths prove as much. If 500 batches in a row were committed at
  their first attempt, 40 of them since the entry's first death, and only batches have died meanwhile that have the
  entry, it is given up after three deaths.

So a good entry is given up only if six outages each begin when it is read and end before another batch is, and none of
them strikes one of the 21 batches read in between; or if three do, after 500 batches without any, and none of them
strikes one of the 40 batches in between. docs/reference/guarantees.md has the odds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from spark_streams.base.untyped import Json
from spark_streams.connector.source.offset import Range

PIECES = 16
SINGLES = 128  # entries of a batch that is cut into single entries at once
DEATHS = 6  # of a piece with a single entry, until the entry is given up
FEW_DEATHS, CLEAN = 3, 500  # the same, if so many batches in a row were committed at their first attempt
_CONTROLS = 40  # other batches that are committed meanwhile; six deaths take 21
_MAX_FAILURES_IN_A_ROW = 8  # deaths without a commit in between; after that no piece is cut
_MAX_PIECES = 256  # if there are fewer, new entries are read beside the pieces


@dataclass(frozen=True)
class Piece:
    """Entries that are set aside: they stay pending for the query's consumer, and no other batch takes them.

    parts: their ranges in each stream, as texts; died: deaths that count; since: `PoisonState.commits` at the last
    death; began: the same at the first death; is_suspect: the last death was of these entries; error, message: cause of
    death, if it is known; given_up: the entries become dead letters.
    """

    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    died: int = 0
    since: int = 0
    began: int = 0
    is_suspect: bool = False
    error: str = ""
    message: str = ""
    given_up: bool = False

    @property
    def count(self) -> int:
        """Entries of all streams."""
        return sum(part.count for parts in self.ranges().values() for part in parts)

    def ranges(self) -> dict[str, tuple[Range, ...]]:
        """Return the ranges of each stream."""
        return {stream: tuple(Range.parse(stream, text) for text in texts) for stream, texts in self.parts.items()}

    @classmethod
    def of(cls, ranges: Mapping[str, Sequence[Range]]) -> Piece:
        """Return a piece of these ranges that has not died."""
        return cls({stream: tuple(map(str, parts)) for stream, parts in ranges.items()})


Ranges = Mapping[str, Sequence[Range]]


@dataclass(frozen=True)
class PoisonState:
    """What a query records across its runs.

    The current batch. token: its name; runs: how many runs have planned it unchanged, whether or not a task has read;
    run: name of the last of them; narrowed: its entries were set aside.
    clean: batches with entries that were committed at their first attempt in a row; a death of other entries than those
    of the last death ends the row.
    The entries set aside. pieces: by name, those that died in the order of their deaths; away: parts of pieces that no
    batch may choose, because their streams are not read, or maxDeliveries is not set; commits: batches with
    entries that were committed at their first attempt while pieces were held; counted: last batch that `commits` and
    `clean` take into account; failures_in_a_row: deaths since the last commit.
    """

    token: str = ""
    runs: int = 0
    run: str = ""
    narrowed: bool = False
    clean: int = 0
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    away: Mapping[str, Piece] = field(default_factory=dict)
    commits: int = 0
    counted: str = ""
    failures_in_a_row: int = 0

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Parse the text that `to_json` returns. Raises LookupError, TypeError, ValueError for any other text."""
        fields: dict[str, Json] = json.loads(text)
        pieces, away = (
            {name: Piece(**piece) for name, piece in held.items()}
            for held in (fields.pop("pieces"), fields.pop("away", {}))
        )
        state = cls(**fields, pieces=pieces, away=away)
        for piece in [*pieces.values(), *away.values()]:
            piece.ranges()
        return state

    def to_json(self) -> str:
        """Return the text that is stored on the server."""
        fields = asdict(self)
        if not self.away:
            del fields["away"]
        return json.dumps(fields)

    # -- the streams that are read ------------------------------------------------------------------------------------

    @property
    def streams(self) -> frozenset[str]:
        """Streams of which entries are set aside."""
        return frozenset(stream for piece in [*self.pieces.values(), *self.away.values()] for stream in piece.parts)

    def with_streams(self, streams: Collection[str]) -> PoisonState:
        """Return the state if these streams are read: parts of the pieces that are of other streams are away."""
        if not self.away and all(stream in streams for stream in self.streams):
            return self
        pieces, away = dict[str, Piece](), dict[str, Piece]()
        for name, piece in [*self.pieces.items(), *self.away.items()]:
            for held, is_read in ((pieces, True), (away, False)):
                parts = {stream: texts for stream, texts in piece.parts.items() if (stream in streams) == is_read}
                if parts:
                    held[name] = replace(piece, parts={**(held[name].parts if name in held else {}), **parts})
        return replace(self, pieces=pieces, away=away)

    def without_streams(self, streams: Collection[str]) -> PoisonState:
        """Return the state without what is set aside of these streams."""

        def kept(held: Mapping[str, Piece]) -> dict[str, Piece]:
            parts = {name: {s: of for s, of in piece.parts.items() if s not in streams} for name, piece in held.items()}
            return {name: replace(held[name], parts=left) for name, left in parts.items() if left}

        return replace(self, pieces=kept(self.pieces), away=kept(self.away))

    def released(self) -> PoisonState:
        """Return the state if nothing is read as a piece (without maxDeliveries): all pieces are away. Other batches
        may read entries of them, so how many they have is not known any more."""
        away = {
            name: replace(
                piece, parts={s: tuple(str(replace(part, count=0)) for part in of) for s, of in parts.items()}
            )
            for name, piece in self.with_streams(()).away.items()
            if (parts := piece.ranges())
        }
        return replace(self, pieces={}, away=away)

    # -- the current batch -------------------------------------------------------------------------------------------

    def for_batch(self, token: str) -> PoisonState:
        """Return the state for the batch with this token. If it is another batch, no run has planned it, and the one
        before is committed."""
        if token == self.token:
            return self
        state = self if self.pieces or not self.token else self.after_commit(self.token, None, True)
        return replace(state, token=token, runs=0, run="", narrowed=False)

    def allowed_deaths(self, limit: int, is_unchanged: bool) -> int:
        """Return how many runs the batch may kill before it is set aside. limit: for an unchanged batch, if no single
        entry is suspected."""
        if not is_unchanged:
            return 1
        return max(limit, 2) if self._has_single_suspect() else limit

    def size_of_pieces(self, count: int, is_unchanged: bool, name: str | None) -> int:
        """Return how many entries each piece has if the current batch is set aside. count: its entries; name: of the
        piece that it is, None: it is none."""
        dead_piece = Piece() if name is None else self.pieces[name]
        may_cut = is_unchanged or dead_piece.died > 0 or not self._without(name)._has_single_suspect()
        if count == 1 or not may_cut or self.failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            return count
        return 1 if count <= SINGLES else -(-count // PIECES)

    def set_aside(self, new_pieces: Mapping[str, Ranges], name: str | None, error: str, message: str) -> PoisonState:
        """Return the state after the current batch has died: its entries become pieces.

        new_pieces: their ranges, by name; name: see size_of_pieces; error, message: cause of death, if it is known."""
        dead_piece = Piece() if name is None else self.pieces[name]
        piece = Piece()
        if len(new_pieces) == 1:
            piece = dead_piece
            if dead_piece.died == 0 or self._is_due(dead_piece):
                began = dead_piece.began if dead_piece.died else self.commits
                piece = replace(piece, died=dead_piece.died + 1, since=self.commits, began=began)
            if error or message:
                piece = replace(piece, error=error, message=message)
        piece = replace(piece, is_suspect=True)
        pieces = {new: replace(piece, parts=Piece.of(ranges).parts) for new, ranges in new_pieces.items()}
        others = {other: replace(held, is_suspect=False) for other, held in self._without(name).pieces.items()}
        is_other_death = bool(self.pieces) and not dead_piece.is_suspect
        return replace(
            self,
            narrowed=True,
            clean=0 if is_other_death else self.clean,
            pieces={**others, **pieces},
            failures_in_a_row=self.failures_in_a_row + 1,
        )

    def after_commit(self, token: str, name: str | None, has_rows: bool) -> PoisonState:
        """Return the state after this batch is in the commit log. name: of the piece that it was, None: it was none."""
        died = name is not None and self.pieces[name].died > 0
        if token == self.token and self.narrowed:
            return self  # it was committed without its entries
        pieces = self._without(name).pieces
        if token != self.token or token == self.counted or not has_rows:
            return replace(self, pieces=pieces)
        if self.runs > 1 or died:
            pieces = {other: Piece(piece.parts) for other, piece in pieces.items()}
            return replace(self, pieces=pieces, counted=token, failures_in_a_row=0, clean=0)
        commits, clean = self.commits + 1, self.clean + 1
        return replace(self, pieces=pieces, counted=token, failures_in_a_row=0, commits=commits, clean=clean)

    def piece_of(self, ranges: Ranges) -> str | None:
        """Return the name of the piece that has these ranges; None: there is none. Counts may differ."""
        wanted = {stream: [(part.after, part.last) for part in parts] for stream, parts in ranges.items()}
        if not wanted:
            return None
        for name, piece in self.pieces.items():
            own = {stream: [(part.after, part.last) for part in parts] for stream, parts in piece.ranges().items()}
            if own == wanted:
                return name
        return None

    def set_aside_in(self, stream: str) -> list[Range]:
        """Return the ranges of a stream that are set aside, in order."""
        return sorted(
            (part for piece in self.pieces.values() for part in piece.ranges().get(stream, ())),
            key=lambda part: part.last,
        )

    @property
    def deaths(self) -> int:
        """After how many deaths a single entry is given up."""
        return FEW_DEATHS if self.clean >= CLEAN else DEATHS

    # -- the entries set aside ---------------------------------------------------------------------------------------

    def condemned(self) -> Iterator[str]:
        """Iterate over the pieces to give up."""
        for name, piece in self.pieces.items():
            if piece.given_up or (piece.count == 1 and piece.died >= self.deaths and self._is_due(piece)):
                yield name

    def give_up(self, name: str) -> PoisonState:
        """Return the state with this piece marked as given up."""
        return replace(self, pieces={**self.pieces, name: replace(self.pieces[name], given_up=True)})

    def without(self, name: str) -> PoisonState:
        """Return the state without this piece, and without what is away of it."""
        pieces, away = (
            {other: piece for other, piece in held.items() if other != name} for held in (self.pieces, self.away)
        )
        return replace(self, pieces=pieces, away=away)

    def cut(self, name: str, new_pieces: Mapping[str, Ranges]) -> PoisonState:
        """Return the state with new pieces in the place of this one, which has not died."""
        piece = Piece(is_suspect=self.pieces[name].is_suspect)
        pieces = {new: replace(piece, parts=Piece.of(ranges).parts) for new, ranges in new_pieces.items()}
        return replace(self, pieces={**self.without(name).pieces, **pieces})

    def _without(self, name: str | None) -> PoisonState:
        return self if name is None else self.without(name)

    def piece_to_cut(self) -> str | None:
        """Return the piece to cut before it is read: a single entry waits for more other batches than there are."""
        fresh = [name for name, piece in self.pieces.items() if not piece.died]
        if self.failures_in_a_row or not fresh or len(fresh) >= _CONTROLS or not self._has_single_suspect():
            return None
        return min(fresh) if self.pieces[min(fresh)].count > 1 else None

    def next_piece(self) -> str | None:
        """Return the piece to read next. None: new entries may be read, if there are any."""
        due = [name for name, piece in self.pieces.items() if piece.died and self._is_due(piece)]
        fresh = [name for name, piece in self.pieces.items() if not piece.died]
        if due or fresh:
            return due[0] if due else min(fresh)
        return self.fallback_piece() if len(self.pieces) >= _MAX_PIECES else None

    def fallback_piece(self) -> str | None:
        """Return the piece to read if there is nothing else to read: one that has not died, or died first."""
        return min(self.pieces, key=lambda name: self.pieces[name].died > 0, default=None)

    def _is_due(self, piece: Piece) -> bool:
        if self.deaths == FEW_DEATHS <= piece.died:
            return self.commits - piece.began >= _CONTROLS
        return self.commits - piece.since >= piece.died

    def _has_single_suspect(self) -> bool:
        return any(piece.died and piece.count == 1 for piece in self.pieces.values())
