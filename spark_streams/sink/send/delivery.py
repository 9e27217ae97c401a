"""What differs between exactly once and at least once, and the values that go between that and the loop.

A delivery knows rows and replies. It builds the pipelined commands, and says which event their replies are; the loop
(chunk_writer.py) sends them and follows the table. A method that takes a server sends its own commands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.sink.encode.chunks import Chunk
from spark_streams.sink.encode.fingerprint import Hashes, Mask
from spark_streams.sink.ledger.balance import Total
from spark_streams.sink.ledger.ledger_view import LedgerView, Share
from spark_streams.sink.send.chunk_states import Event, State
from spark_streams.wire.connection.connection import Connection, ReplyError
from spark_streams.wire.connection.pipe import Pipe
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Rest:
    """What is left to do for a chunk. For example: of 100 rows, an earlier attempt has written 60, and an earlier run
    has written 10 of the others. Then 30 rows are sent, and the mark names 40."""

    fresh: Chunk  # the rows to send
    shares: Sequence[Share] = ()  # by stream, the rows that the mark is to name: those to send and those to claim
    claimed: Mask | None = None  # which rows of `shares` are claimed; None: no row
    met: Sequence[tuple[LedgerView, Hashes]] = ()  # the rows that other attempts have written


@dataclass(frozen=True)
class Request:
    """What is sent for a chunk, packed."""

    checks: bytes  # WATCH, and the commands whose answers `expected` foretells; empty without a ledger
    rows: memoryview  # XADDs
    beside: Sequence[bytes]  # further commands: XTRIM, and those that write the mark
    count: int  # number of commands, without the checks


@dataclass(frozen=True)
class Verdict:
    """What the replies to a chunk's commands say."""

    event: Event
    refused: Mapping[int, ReplyError] = field(default_factory=dict)  # commands refused for good, by their places
    pause: ReplyError | None = None  # the refusal that may pass
    again: Chunk | None = None  # without a ledger: rows to send again
    doubtful: Chunk | None = None  # without a ledger: rows with ids of their own, to look for in their stream


@dataclass(frozen=True)
class Findings:
    """What the comparison with the ledger says. watched: the connection that WATCHes the ledger."""

    event: Event
    rest: Rest
    watched: Connection | None = None


@dataclass(eq=False)
class Write:
    """A chunk that is being written. Only the loop changes it."""

    chunk: Chunk
    mark_name: bytes = b""  # of its mark in the ledger
    shares: Sequence[Share] = ()  # its rows by stream
    rest: Rest = field(init=False)
    state: State = field(default=State.PREPARED, init=False)
    pipe: Pipe | None = field(default=None, init=False)  # over which it was sent last; None: not sent, or lost
    count: int = field(default=0, init=False)  # number of commands that were sent
    verdict: Verdict | None = field(default=None, init=False)  # on these commands, until the next comparison
    watched: Connection | None = field(default=None, init=False)  # as in Findings
    stream: bytes = field(init=False)  # one of its streams: all are on one server

    def __post_init__(self) -> None:
        self.stream = self.chunk.stream_names[0]
        self.begin()

    def begin(self) -> None:
        """All rows are to be sent."""
        self.rest, self.verdict, self.watched = Rest(self.chunk, self.shares), None, None


class Delivery(ABC):
    """Exactly once (exactly_once.py) or at least once (at_least_once.py). A method that is not abstract does what is
    right without a ledger.

    A method that is given a server talks to it while nothing else is under way, and may be run again after a lost
    connection.
    """

    # Packed commands before a chunk's commands, and after them.
    frame: tuple[bytes, bytes] = (b"", b"")

    # -- rows are received --------------------------------------------------------------------------------------

    def needs_opening(self, chunk: Chunk) -> bool:
        """Whether the chunk has rows for a stream whose ledger this task has not read yet."""
        return False

    def open(self, chunk: Chunk, server: Server) -> None:  # noqa: B027 - not abstract on purpose
        """Read the ledgers of the chunk's streams. Raises LedgerError, ServerError."""

    def take_in(self, chunk: Chunk) -> Iterable[Write]:
        """Count the rows. Return those that may be written now, and hold back the others."""
        return [Write(chunk)]

    def require_all_matched(self, server: Server) -> None:  # noqa: B027 - not abstract on purpose
        """Called when all rows are received: require that they include all rows that earlier attempts have written.
        Raises LedgerError."""

    def held_back(self) -> Iterable[Write]:
        """The rows that were held back."""
        return ()

    def totals(self) -> dict[bytes, Total]:
        """By stream, the rows received and the sum of their fingerprints; empty without a ledger."""
        return {}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def way(self, write: Write) -> Event:
        """Which path the chunk takes: FREE, SHARED, NO_LEDGER or NONE_MISSING."""
        return Event.NO_LEDGER

    @abstractmethod
    def request(self, write: Write, beside: Sequence[bytes]) -> Request:
        """The commands for the rows that are left. beside: further packed commands."""

    def expected(self, write: Write) -> bytes:
        """The answers to the checks if the ledger has not changed."""
        return b""

    @abstractmethod
    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """What the replies to the commands say, and those to the frame around them."""

    @abstractmethod
    def compare(self, server: Server, write: Write) -> Findings:
        """Find out which rows are missing. Raises LedgerError, EntryIdError, ServerError."""

    def on_executed(self, write: Write) -> None:  # noqa: B027 - not abstract on purpose
        """The server has executed the chunk."""

    def correct_mark(self, server: Server, write: Write) -> None:  # noqa: B027 - not abstract on purpose
        """The server has refused rows: remove these from the chunk's mark. May be run again."""

    # -- durability ---------------------------------------------------------------------------------------------

    @abstractmethod
    def missing_on(self, server: Server, kept: Sequence[Write]) -> list[Write]:
        """If another server answers than before, the chunks that it lacks or may lack. Raises LedgerError if it lacks
        others, too."""

    @abstractmethod
    def touch(self, server: Server, kept: Sequence[Write]) -> list[bytes]:
        """Prepare for WAIT, which covers what its connection has written before. Return the streams to wait for."""
