"""What differs between exactly once and at least once, and the values that go between that and the loop.

A delivery knows rows and replies. It returns values; the loop (chunk_writer.py) sends commands and decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.sink.balance import Total
from spark_streams.sink.chunk_states import Event, State
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.fingerprint import Hashes, Mask
from spark_streams.sink.ledger_view import LedgerView, Share
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class Rest:
    """What is left to do for a chunk. fresh: the rows to send; shares: those by stream, and the rows that earlier runs
    have written and this one claims; claimed: which of `shares` these are; met: the rows that other attempts have
    written."""

    fresh: Chunk
    shares: Sequence[Share] = ()
    claimed: Mask | None = None
    met: Sequence[tuple[LedgerView, Hashes]] = ()


@dataclass(frozen=True)
class Request:
    """What is sent for a chunk, packed. questions: WATCH, and what is answered as `expected`; rows: its XADDs; beside:
    what goes along; count: of the commands without the questions."""

    questions: bytes
    rows: memoryview
    beside: Sequence[bytes]
    count: int


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


@dataclass(eq=False)
class Write:
    """A chunk on its way; the loop alone changes it. mark: its name in the ledger; shares: its rows there; pipe: where
    it was sent last; count: of the commands that were sent; verdict: on these, until the server is looked at; watched:
    as in Findings."""

    chunk: Chunk
    mark: bytes = b""
    shares: Sequence[Share] = ()
    rest: Rest = field(init=False)
    state: State = field(default=State.PREPARED, init=False)
    pipe: Pipe | None = field(default=None, init=False)
    count: int = field(default=0, init=False)
    verdict: Verdict | None = field(default=None, init=False)
    watched: Connection | None = field(default=None, init=False)
    stream: bytes = field(init=False)  # one of its streams: all are on one server

    def __post_init__(self) -> None:
        self.stream = self.chunk.stream_names[0]
        self.begin()

    def begin(self) -> None:
        """All rows are to be sent."""
        self.rest, self.verdict, self.watched = Rest(self.chunk, self.shares), None, None


class Delivery(ABC):
    """Exactly once (exactly_once.py) or at least once (at_least_once.py). What is done here is right without a ledger.

    A method that is given a server talks to it while nothing else is under way, and may be run again after a lost
    connection.
    """

    # What stands before a chunk's commands and behind them, packed.
    frame: tuple[bytes, bytes] = (b"", b"")

    # -- rows come in -------------------------------------------------------------------------------------------

    def needs_opening(self, chunk: Chunk) -> bool:
        """Whether the chunk has rows for a stream whose ledger this task has not read yet."""
        return False

    def open(self, chunk: Chunk, server: Server) -> None:  # noqa: B027 - see above
        """Read the ledgers of the chunk's streams. Raises LedgerError, ReplyError, WrongKeyTypeError."""

    def take_in(self, chunk: Chunk) -> Iterable[Write]:
        """Count the rows. Return those that may be written now, and hold back the others."""
        return [Write(chunk)]

    def require_all_met(self, server: Server) -> None:  # noqa: B027 - see above
        """All rows have come in: they include what attempts before this one have written. Raises LedgerError."""

    def held_back(self) -> Iterable[Write]:
        """The rows that were held back."""
        return ()

    def totals(self) -> dict[bytes, Total]:
        """By stream, what has come in, where it is counted."""
        return {}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def way(self, write: Write) -> Event:
        """Which way the chunk goes: FREE, SHARED, NO_LEDGER, NONE_MISSING."""
        return Event.NO_LEDGER

    @abstractmethod
    def request(self, write: Write, beside: Sequence[bytes]) -> Request:
        """What is to be sent for what is left of the chunk. beside: packed commands that go along."""

    def expected(self, write: Write) -> bytes:
        """The answers to the questions while nothing has changed."""
        return b""

    @abstractmethod
    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """What the replies to the commands say, and those to the frame around them."""

    @abstractmethod
    def look(self, server: Server, write: Write) -> Findings:
        """Which rows are missing. Raises ReplyError, LedgerError, EntryIdError."""

    def written(self, write: Write) -> None:  # noqa: B027 - see above
        """The chunk is written."""

    def take_back(self, server: Server, write: Write) -> None:  # noqa: B027 - see above
        """Rows were refused: let the ledger name only those that are written."""

    # -- what is written stays ----------------------------------------------------------------------------------

    @abstractmethod
    def gone(self, server: Server, kept: Sequence[Write]) -> list[Write]:
        """Which of these chunks the server lacks, or may lack, where it is another one than before. Raises LedgerError
        if it lacks others, too."""

    @abstractmethod
    def touch(self, server: Server, kept: Sequence[Write]) -> list[bytes]:
        """Prepare for WAIT, which covers what its connection has written before. Return the streams to wait for."""
