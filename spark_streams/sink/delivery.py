"""What exactly once and at least once have in common for the loop that sends chunks, and the values that go between.

A delivery knows rows and replies. It returns values, and the loop (chunk_writer.py) sends commands and decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spark_streams.sink.balance import Total
from spark_streams.sink.chunk_states import Event, State
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.fingerprint import Hashes, Mask
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class Rest:
    """What is left to do for a chunk. fresh: the rows to send; marked: those, and the rows that earlier runs have
    written and this one claims; claimed: which of `marked` these are; met: by stream, the rows that other attempts have
    written."""

    fresh: Chunk
    marked: Chunk
    claimed: Mask | None = None
    met: Mapping[bytes, Hashes] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What the replies to a chunk's commands say. refused: by their places, commands that were refused for good; pause:
    the refusal that may pass; again, doubtful: without a ledger, rows to send again, and rows to look for in their
    stream."""

    event: Event
    refused: Mapping[int, ReplyError] = field(default_factory=dict)
    pause: ReplyError | None = None
    again: Chunk | None = None
    doubtful: Chunk | None = None


@dataclass(frozen=True)
class Findings:
    """What a look at the server says. watched: the connection that WATCHes the ledger."""

    event: Event
    rest: Rest
    watched: Connection | None = None


@dataclass(frozen=True)
class Request:
    """The commands for a chunk, packed. rows: its XADDs; beside: what goes along; count: of all commands."""

    rows: memoryview
    beside: Sequence[bytes]
    count: int


@dataclass(eq=False)
class Write:
    """A chunk on its way; the loop alone changes it. mark: its name in the ledger; pipe: where it was sent last; count:
    of the commands that were sent; verdict: on these, until the server is looked at; watched: as in Findings."""

    chunk: Chunk
    mark: bytes
    rest: Rest = field(init=False)
    state: State = field(default=State.PREPARED, init=False)
    pipe: Pipe | None = field(default=None, init=False)
    count: int = field(default=0, init=False)
    verdict: Verdict | None = field(default=None, init=False)
    watched: Connection | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """All rows are to be sent."""
        self.rest, self.verdict, self.watched = Rest(self.chunk, self.chunk), None, None

    @property
    def stream(self) -> bytes:
        """One of its streams: all are on one server."""
        return self.chunk.streams[int(self.chunk.codes[0])]


class Delivery(Protocol):
    """Exactly once (exactly_once.py) or at least once (at_least_once.py). What gets a server talks to it while nothing
    else is under way, and may be run again after a lost connection."""

    # -- rows come in -------------------------------------------------------------------------------------------

    def needs_opening(self, chunk: Chunk) -> bool:
        """Whether the chunk has rows for a stream whose ledger this task has not read yet."""

    def open(self, server: Server, chunk: Chunk) -> None:
        """Read the ledgers of the chunk's streams. Raises LedgerError, ReplyError, WrongKeyTypeError."""

    def take_in(self, chunk: Chunk) -> Iterator[Chunk]:
        """Count the rows. Return those that may be written now, and hold back the others."""

    def require_all_met(self, server: Server) -> None:
        """All rows have come in: they include what attempts before this one have written. Raises LedgerError."""

    def held_back(self) -> Iterator[Chunk]:
        """The rows that were held back."""

    def totals(self) -> dict[bytes, Total]:
        """By stream, what has come in, if it is counted."""

    # -- a chunk is written -------------------------------------------------------------------------------------

    @property
    def frame(self) -> tuple[bytes, bytes]:
        """What stands before a chunk's commands and behind them, packed: MULTI and EXEC, or nothing."""

    def name(self) -> bytes:
        """The next chunk's name in the ledger."""

    def way(self, chunk: Chunk) -> Event:
        """Which way the chunk goes: FREE, SHARED, NO_LEDGER, NONE_MISSING."""

    def questions(self, chunk: Chunk) -> bytes:
        """WATCH and the questions whose answers `expected` foretells, packed."""

    def expected(self, chunk: Chunk) -> bytes:
        """The answers while nothing has changed."""

    def request(self, write: Write, beside: Sequence[bytes]) -> Request:
        """The commands for what is left of the chunk. beside: packed commands that go along."""

    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """What the replies to `request` say; with a ledger, those to MULTI … EXEC."""

    def look(self, server: Server, write: Write) -> Findings:
        """Which rows are missing. Raises ReplyError, LedgerError, EntryIdError."""

    def written(self, write: Write) -> None:
        """The chunk is written."""

    def take_back(self, server: Server, write: Write) -> None:
        """Rows were refused: let the ledger name only those that are written."""

    # -- what is written stays ----------------------------------------------------------------------------------

    def gone(self, server: Server, kept: Sequence[Write]) -> list[Write]:
        """Which of these chunks the server lacks, where it is another one than before. Raises LedgerError if it lacks
        others, too."""

    def touch(self, server: Server, kept: Sequence[Write]) -> list[bytes]:
        """Prepare for WAIT, which covers what its connection has written before. Return the streams to wait for."""
