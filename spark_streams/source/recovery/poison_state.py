"""State of the search for an entry that kills the query: which piece is read next, which entry is condemned. Pure.

A run dies of an entry (the user's code raises, the Python worker or the driver is killed), or of something else: the
sink is away, a machine is lost. Both look alike in the death of one run. Commits of other batches tell them apart: an
outage strikes every batch, and an entry that kills strikes every batch that reads it, and no other. So

- A batch that dies too often is cut into pieces. Each piece is held apart and is read as a batch of its own. A piece
  that dies goes to the back of the queue. It is cut when it dies again, or at once if no piece has a single entry.
- A piece with a single entry that has died n times waits until n other batches are committed, each at its first
  attempt. Only then does its next death count. After six deaths and the wait after the sixth, the entry is given up. Of
  one outage, however long, one death counts at most: while nothing is committed, nothing is concluded.
- If a batch or piece that has died is committed unchanged, runs die of something else. Earlier deaths no longer count.

So a good entry is given up only if six outages each begin when it is read and end before another batch is, and none of
them strikes one of the 21 batches read in between. docs/reference/guarantees.md has the odds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from spark_streams.model.untyped import Json

PIECES = 16
DEATHS = 6  # of a piece with a single entry, until the entry is given up
_CONTROLS = DEATHS * (DEATHS + 1) // 2  # other batches that are committed in between
_MAX_FAILURES_IN_A_ROW = 8  # deaths without a commit in between; after that no piece is cut
_MAX_PIECES = 256  # if there are fewer, new entries are read beside the pieces


@dataclass(frozen=True)
class Piece:
    """Entries that are held apart.

    entries: number of each stream; died: deaths that count; since: `PoisonState.commits` at the last death; error,
    message: cause of death, if it is known; given_up: the entries become dead letters.
    """

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
class PoisonState:
    """What a query records across its runs.

    The current batch. token: its name; runs: how many runs have planned it unchanged; run: name of the last of them;
    narrowed: entries of it were set aside; aside: the piece that these entries become, while they are moved to
    consumers with `size` entries each.
    The entries held apart. pieces: by consumer, those that died in the order of their deaths; commits: batches with
    entries that were committed at their first attempt while pieces were held; counted: last batch that `commits` takes
    into account; failures_in_a_row: deaths since the last commit.
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
    failures_in_a_row: int = 0

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Parse the text that `to_json` returns. Raises LookupError, TypeError, ValueError for any other text."""
        fields: dict[str, Json] = json.loads(text)
        aside = fields.pop("aside")
        pieces = {name: Piece(**piece) for name, piece in fields.pop("pieces").items()}
        return cls(**fields, pieces=pieces, aside=None if aside is None else Piece(**aside))

    def to_json(self) -> str:
        """Return the text that is stored on the server."""
        return json.dumps(asdict(self))

    # -- the current batch -------------------------------------------------------------------------------------------

    def for_batch(self, token: str) -> PoisonState:
        """Return the state for the batch with this token. If it is another batch, no run has planned it."""
        return self if token == self.token else replace(self, token=token, runs=0, run="", narrowed=False, aside=None)

    def allowed_deaths(self, limit: int, is_unchanged: bool) -> int:
        """Return how many runs the batch may kill before it is set aside. limit: for an unchanged batch, if no single
        entry is suspected."""
        if not is_unchanged:
            return 1
        return max(limit, 2) if self._has_single_suspect() else limit

    def set_aside(
        self, count: int, is_unchanged: bool, piece_consumers: Sequence[str], error: str, message: str
    ) -> PoisonState:
        """Return the state after the current batch has died: its entries become pieces.

        count: its entries; piece_consumers: of the piece that it is, if it is one; error, message: cause of death, if
        it is known.
        """
        dead_piece = next((self.pieces[name] for name in piece_consumers if name in self.pieces), Piece())
        pieces = {name: piece for name, piece in self.pieces.items() if name not in piece_consumers}
        other_pieces = replace(self, pieces=pieces)
        may_cut = is_unchanged or dead_piece.died > 0 or not other_pieces._has_single_suspect()
        if count > 1 and may_cut and self.failures_in_a_row < _MAX_FAILURES_IN_A_ROW:
            size, piece = -(-count // PIECES), Piece()
        else:
            size, piece = count, dead_piece
            if dead_piece.died == 0 or self._is_due(dead_piece):
                piece = replace(piece, died=dead_piece.died + 1, since=self.commits)
            if error or message:
                piece = replace(piece, error=error, message=message)
        failures = self.failures_in_a_row + 1
        return replace(
            other_pieces, narrowed=True, aside=replace(piece, entries={}), size=size, failures_in_a_row=failures
        )

    def with_pieces(self, new_pieces: Mapping[str, Mapping[str, int]]) -> PoisonState:
        """Return the state after the entries that were set aside have been moved. new_pieces: entries that each
        consumer now holds, per stream."""
        assert self.aside is not None
        return replace(
            self,
            pieces={**self.pieces, **{name: replace(self.aside, entries=held) for name, held in new_pieces.items()}},
            aside=None,
        )

    def after_commit(self, token: str, piece_consumers: Sequence[str], has_rows: bool) -> PoisonState:
        """Return the state after this batch is in the commit log. piece_consumers: of the piece that it was."""
        committed_pieces = [self.pieces[name] for name in piece_consumers if name in self.pieces]
        pieces = {name: piece for name, piece in self.pieces.items() if name not in piece_consumers}
        if token != self.token or token == self.counted or self.narrowed or not has_rows:
            return replace(self, pieces=pieces)
        if self.runs > 1 or any(piece.died for piece in committed_pieces):
            pieces = {name: Piece(piece.entries) for name, piece in pieces.items()}
            return replace(self, pieces=pieces, counted=token, failures_in_a_row=0)
        return replace(self, pieces=pieces, counted=token, failures_in_a_row=0, commits=self.commits + 1)

    # -- the entries held apart --------------------------------------------------------------------------------------

    def with_held(
        self, held_entries: Mapping[str, Mapping[str, int]], streams: Collection[str]
    ) -> tuple[PoisonState, Counter[str]]:
        """Return the state with the pieces that the server has, and how many entries are missing, per stream.

        held_entries: per consumer and stream of `streams`, how many entries the consumer holds.
        """
        missing = Counter[str]()
        pieces: dict[str, Piece] = {}
        for name, piece in self.pieces.items():
            held = held_entries.get(name, {})
            for stream in piece.entries if not piece.given_up else ():
                if stream in streams:
                    missing[stream] += max(0, piece.entries[stream] - held.get(stream, 0))
            if held:
                pieces[name] = replace(piece, entries=held)
        pieces |= {name: Piece(held) for name, held in sorted(held_entries.items()) if name not in self.pieces}
        return replace(self, pieces=pieces), +missing

    def condemned(self) -> Iterator[str]:
        """Iterate over the pieces to give up."""
        for name, piece in self.pieces.items():
            if piece.given_up or (piece.count == 1 and piece.died >= DEATHS and self._is_due(piece)):
                yield name

    def give_up(self, name: str) -> PoisonState:
        """Return the state with this piece marked as given up."""
        return replace(self, pieces={**self.pieces, name: replace(self.pieces[name], given_up=True)})

    def without(self, name: str) -> PoisonState:
        """Return the state without this piece."""
        return replace(self, pieces={other: piece for other, piece in self.pieces.items() if other != name})

    def cut(self, name: str, new_pieces: Mapping[str, Mapping[str, int]]) -> PoisonState:
        """Return the state with new pieces in the place of this one, which has not died."""
        return replace(
            self.without(name),
            pieces={**self.without(name).pieces, **{consumer: Piece(held) for consumer, held in new_pieces.items()}},
        )

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
        return self.commits - piece.since >= piece.died

    def _has_single_suspect(self) -> bool:
        return any(piece.died and piece.count == 1 for piece in self.pieces.values())
