"""The record of failed batches: the search for an entry that kills the query, and its keys on the server.

    rstream:attempts:…   PoisonState: how many runs have planned the batch; the pieces of batches that were cut
    rstream:tried:…      by the batch's token: the micro-batch of Spark whose tasks read it
    rstream:failure:…    the error that ended the query last

They are beside one stream of the query, which the offset names. poison_batch.py writes and follows the record.

A run dies of an entry (the user's code raises, the Python worker or the driver is killed), or of something else: the
sink is away, a machine is lost. Commits of other batches tell them apart: an outage strikes every batch, and an entry
that kills strikes every batch that reads it, and no other. So

- A batch that dies too often is cut into pieces, up to 128 entries into single entries. Each piece is set aside and is
  read as a batch of its own. A piece that dies goes to the back of the queue. It is cut when it dies again, or at once
  if no piece has a single entry.
- A piece with a single entry that has died n times waits until n other batches are committed, each at its first
  attempt. Only then does its next death count: of one outage, however long, one death counts at most. After six deaths
  and the wait after the sixth, the entry is given up.
- If a batch or piece that has died is committed unchanged, runs die of something else. Earlier deaths no longer count.
- Where runs hardly ever die of something else, fewer deaths prove as much. If 500 batches in a row were committed at
  their first attempt, 40 of them since the entry's first death, and only batches have died meanwhile that have the
  entry, it is given up after three deaths.
docs/reference/guarantees.md has the odds that a good entry is given up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from spark_streams.base.numbers import parse_number
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import CLOSED, DONE, head_key, is_returned, key_beside, record_key
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import is_not_permitted

PIECES = 16
SINGLES = 128  # entries of a batch that is cut into single entries at once
DEATHS = 6  # of a piece with a single entry, until the entry is given up
FEW_DEATHS, CLEAN = 3, 500  # the same, if so many batches in a row were committed at their first attempt
_CONTROLS = 40  # other batches that are committed meanwhile; six deaths take 21
_MAX_FAILURES_IN_A_ROW = 8  # deaths without a commit in between; after that no piece is cut
_MAX_PIECES = 256  # if there are fewer, new entries are read beside the pieces

Ranges = Mapping[str, Sequence[Range]]  # by stream


@dataclass(frozen=True)
class Piece:
    """Entries that are set aside: they stay pending for the query's consumer, and no other batch takes them."""

    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # their ranges in each stream, as texts
    died: int = 0  # deaths that count
    since: int = 0  # `PoisonState.commits` at the last death
    began: int = 0  # the same at the first death
    is_suspect: bool = False  # the last death was of these entries
    error: str = ""  # class of the cause of death, if it is known
    message: str = ""  # of this error
    given_up: bool = False  # the entries become dead letters
    runs: int = 0  # that have died of a batch with these entries, whether or not the death counts

    @property
    def count(self) -> int:
        return sum(part.count for parts in self.ranges().values() for part in parts)

    def ranges(self) -> dict[str, tuple[Range, ...]]:
        return {stream: tuple(Range.parse(stream, text) for text in texts) for stream, texts in self.parts.items()}

    def of(self, ranges: Ranges) -> Piece:
        return replace(self, parts={stream: tuple(map(str, parts)) for stream, parts in ranges.items()})


@dataclass(frozen=True)
class PoisonState:
    # The current batch.
    token: str = ""  # its name
    runs: int = 0  # that have planned it unchanged, whether or not a task has read
    run: str = ""  # name of the last of them
    narrowed: bool = False  # its entries were set aside
    # Batches with entries that were committed at their first attempt in a row. A death of other entries than those of
    # the last death ends the row.
    clean: int = 0
    # The entries set aside.
    pieces: Mapping[str, Piece] = field(default_factory=dict)  # by name; those that died in the order of their deaths
    # Parts of pieces that no batch may choose: their streams are not read, or maxDeliveries is not set.
    away: Mapping[str, Piece] = field(default_factory=dict)
    commits: int = 0  # batches with entries that were committed at their first attempt while pieces were held
    counted: str = ""  # last batch that `commits` and `clean` take into account
    failures_in_a_row: int = 0  # deaths since the last commit

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
        fields = asdict(self)
        for piece in [*fields["pieces"].values(), *fields["away"].values()]:
            if not piece["runs"]:
                del piece["runs"]  # as the first version
        if not self.away:
            del fields["away"]
        return json.dumps(fields)

    # -- the streams that are read ------------------------------------------------------------------------------------

    @property
    def streams(self) -> frozenset[str]:
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
        pieces, away = (
            {
                name: replace(piece, parts=parts)
                for name, piece in held.items()
                if (parts := {stream: texts for stream, texts in piece.parts.items() if stream not in streams})
            }
            for held in (self.pieces, self.away)
        )
        return replace(self, pieces=pieces, away=away)

    def released(self, read: Collection[str]) -> PoisonState:
        """Return the state if nothing is read as a piece (without maxDeliveries): all pieces are away. Other batches
        may read entries of them in these streams, so how many they have is not known any more."""
        away = dict[str, Piece]()
        for name, piece in self.with_streams(()).away.items():
            parts = {
                stream: [replace(part, count=0) if stream in read else part for part in of]
                for stream, of in piece.ranges().items()
            }
            if parts:
                away[name] = piece.of(parts)
        return replace(self, pieces={}, away=away)

    # -- the current batch -------------------------------------------------------------------------------------------

    def for_batch(self, token: str) -> PoisonState:
        """Return the state for the batch with this token. If it is another batch, no run has planned it, and the one
        before is committed. If pieces of it are held, an older copy of the checkpoint runs it again."""
        if token == self.token:
            return self
        state = self if self.pieces or not self.token else self.after_commit(self.token, None, True)
        is_cut = any(name.partition("~")[2].partition(".")[0] == token for name in [*self.pieces, *self.away])
        return replace(state, token=token, runs=0, run="", narrowed=is_cut)

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
        may_cut = is_unchanged or dead_piece.died > 0 or not self.without(name)._has_single_suspect()
        if count == 1 or not may_cut or self.failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            return count
        return 1 if count <= SINGLES else -(-count // PIECES)

    def set_aside(self, new_pieces: Mapping[str, Ranges], name: str | None, error: str, message: str) -> PoisonState:
        """Return the state after the current batch has died: its entries become pieces.

        new_pieces: by name; name: see size_of_pieces; error, message: cause of death, if it is known."""
        dead_piece = Piece() if name is None else self.pieces[name]
        piece = Piece()
        if len(new_pieces) == 1:
            piece = dead_piece
            if dead_piece.died == 0 or self._is_due(dead_piece):
                began = dead_piece.began if dead_piece.died else self.commits
                piece = replace(piece, died=dead_piece.died + 1, since=self.commits, began=began)
            if error or message:
                piece = replace(piece, error=error, message=message)
        piece = replace(piece, is_suspect=True, runs=dead_piece.runs + self.runs - 1)
        pieces = {new: piece.of(ranges) for new, ranges in new_pieces.items()}
        others = {other: replace(held, is_suspect=False) for other, held in self.without(name).pieces.items()}
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
        pieces = self.without(name).pieces
        if token != self.token or token == self.counted or not has_rows:
            return replace(self, pieces=pieces)
        if self.runs > 1 or died:
            pieces = {other: Piece(piece.parts, runs=piece.runs) for other, piece in pieces.items()}
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
        for name, piece in self.pieces.items():
            if piece.given_up or (piece.count == 1 and piece.died >= self.deaths and self._is_due(piece)):
                yield name

    def give_up(self, name: str) -> PoisonState:
        return replace(self, pieces={**self.pieces, name: replace(self.pieces[name], given_up=True)})

    def without(self, name: str | None) -> PoisonState:
        """Return the state without this piece, and without what is away of it. None: without none."""
        pieces, away = (
            {other: piece for other, piece in held.items() if other != name} for held in (self.pieces, self.away)
        )
        return replace(self, pieces=pieces, away=away)

    def cut(self, name: str, new_pieces: Mapping[str, Ranges]) -> PoisonState:
        """Return the state with new pieces in the place of this one, which has not died."""
        piece = Piece(runs=self.pieces[name].runs, is_suspect=self.pieces[name].is_suspect)
        pieces = {new: piece.of(ranges) for new, ranges in new_pieces.items()}
        return replace(self, pieces={**self.without(name).pieces, **pieces})

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


# -- on the server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryFailure:
    """Class and message of the error that ended the query last, if it is known."""

    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class CachedPoisonState:
    """A run's copy of the state on the server."""

    state: PoisonState | None = None  # None: it was not fetched
    key: bytes | None = None  # of the record on the server

    @property
    def may_hold(self) -> bool:
        return self.state is None or bool(self.state.streams)

    @property
    def holds_pieces(self) -> bool:
        return self.state is not None and bool(self.state.pieces)

    @property
    def streams(self) -> frozenset[str]:
        return frozenset() if self.state is None else self.state.streams


class PoisonRecord:
    """The record of one query's state while a batch is planned or chosen. cache: the run's copy of it."""

    def __init__(self, server: Server, cache: CachedPoisonState, *offsets: Offset) -> None:
        """offsets: the record is beside a stream of one of them; the first offset that has one decides."""
        self._server = server
        self._offset = offsets[0]
        self.cache = cache
        if cache.state is None:
            self.cache = replace(cache, state=PoisonState(), key=None)
            for key in dict.fromkeys(key_of("attempts", offset) for offset in offsets if offset.streams):
                text = server.execute("GET", key)
                if text is not None:
                    self.cache = replace(cache, state=_parse_state(key, text), key=key)
                    break

    @property
    def state(self) -> PoisonState:
        assert self.cache.state is not None
        return self.cache.state

    def save(self, state: PoisonState, *obsolete: bytes) -> None:
        """Store the state on the server. If its key has changed, delete the old one. obsolete: other keys to delete."""
        key, old_key = key_of("attempts", self._offset), self.cache.key
        old = [*obsolete, *([old_key] if old_key not in (None, key) else [])]
        self._server.execute_all([("SET", key, state.to_json()), *[("DEL", name) for name in old]])
        self.cache = replace(self.cache, state=state, key=key)


def _parse_state(key: bytes, text: bytes) -> PoisonState:
    try:
        return PoisonState.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r}, the record of failed batches, cannot be read. Delete it "
            f"(DEL {key.decode('utf-8', 'replace')}) and start the query with a new checkpoint"
        ) from None


def note_attempt(server: Server, key: bytes, token: str, query: str, batch: str) -> None:
    """Store which micro-batch of Spark reads the batch with this token. A task calls it, which may be late.
    key: from `attempt_key_of`."""
    if query:
        server.execute("HSET", key, token, f"{batch} {query}")


def is_done_in_sink(server: Server, end: Offset) -> bool:
    """Whether an exactly-once sink on this server has completed the batch that ends here, or has begun to, which it
    does when all tasks have succeeded. If so, the run has died between the tasks and Spark's commit log, and not of an
    entry. False if that is unknown: another sink or server, or the sink's keys are forbidden to us."""
    note = server.execute("HGET", attempt_key_of(end), end.token)
    batch, _, query = (note or b"").decode("utf-8", "replace").partition(" ")
    number = parse_number(batch)
    if not query or number is None:
        return False
    [reply] = server.execute_all([("HGETALL", record_key(query))], is_not_permitted)
    if is_not_permitted(reply):
        return False
    record = dict(zip(reply[0::2], reply[1::2], strict=True))
    closed = parse_number(record.pop(CLOSED, b""))
    if closed is not None and closed >= number:
        return True
    written = [stream for stream, named in record.items() if parse_number(named) == number]
    done = server.execute_all([("HGET", head_key(stream, query), DONE) for stream in written], is_not_permitted)
    return any(isinstance(reply, bytes) and parse_number(reply) == number for reply in done)


def attempt_key_of(end: Offset) -> bytes:
    """Return the key of the hash in which tasks store the micro-batch of Spark that reads a batch, by its token. It is
    deleted before the tasks of the next batch run."""
    return key_of("tried", end)


def fetch_failure(server: Server, end: Offset) -> QueryFailure:
    """Return the error that `note_failure` stored last, if any."""
    text = server.execute("GET", key_of("failure", end))
    try:
        fields = json.loads(text or b"{}")
        return QueryFailure(str(fields.get("error", "")), str(fields.get("message", "")))
    except (ValueError, AttributeError, RecursionError):
        return QueryFailure()


def note_failure(server: Server, offset: Offset, failure: QueryFailure) -> None:
    """Store why a query ended, for the dead letter of the entry that killed it. offset: any of the query's offsets."""
    if offset.streams:
        text = json.dumps({"error": failure.error, "message": failure.message[:2000]})
        server.execute("SET", key_of("failure", offset), text)


def key_of(kind: str, offset: Offset) -> bytes:
    """Return a key beside the stream that has the record."""
    return key_beside(offset.record or first_stream(offset.at), kind, offset.group, offset.consumer)


def first_stream(streams: Iterable[str]) -> str:
    """Return the stream beside which a new record is; "" without streams."""
    return min(streams, key=lambda stream: (is_returned(stream), stream), default="")
