"""Interface of exactly once and at least once, and the values that they exchange with the loop.

A delivery builds the pipelined commands of a chunk, and turns their replies into an event. The loop (chunk_writer.py)
sends the commands and follows the table. A method that takes a server sends its own commands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.connector.sink.encode.chunks import Chunk
from spark_streams.connector.sink.encode.fingerprint import Hashes, Mask
from spark_streams.connector.sink.ledger.balance import Total
from spark_streams.connector.sink.ledger.ledger_view import LedgerView, StreamRows
from spark_streams.connector.sink.send.chunk_states import Event, State
from spark_streams.connector.wire.connection.connection import Connection, ReplyError
from spark_streams.connector.wire.connection.server import Pipe, Server


@dataclass(frozen=True)
class UnwrittenRows:
    """Rest of a chunk: the rows that are not written yet. For example: of 100 rows, an earlier attempt has written 60,
    and an earlier run has written 10 of the others. Then 30 rows are sent, and the mark names 40."""

    to_send: Chunk  # the rows to send
    marked: Sequence[StreamRows] = ()  # by stream, the rows that the mark is to name: rows to send and rows to claim
    claimed: Mask | None = None  # which rows of `marked` are claimed; None: no row
    matched: Sequence[tuple[LedgerView, Hashes]] = ()  # the rows that other attempts have written


@dataclass(frozen=True)
class Request:
    """Packed commands of a chunk."""

    checks: bytes  # WATCH, and the commands whose replies `expected` predicts; empty without a ledger
    rows: memoryview  # XADDs
    extra: Sequence[bytes]  # further commands: XTRIM, and the commands that write the mark
    count: int  # number of commands, without the checks


@dataclass(frozen=True)
class ReplyResult:
    """What the replies to a chunk's commands say."""

    event: Event
    refused: Mapping[int, ReplyError] = field(default_factory=dict)  # commands refused for good, by their index
    temporary_refusal: ReplyError | None = None  # a refusal that may be temporary
    to_retry: Chunk | None = None  # without a ledger: rows to send again
    doubtful: Chunk | None = None  # without a ledger: rows with explicit IDs, to look for in their stream


@dataclass(frozen=True)
class Comparison:
    """Result of the comparison with the ledger. watched: the connection that WATCHes the ledger."""

    event: Event
    rest: UnwrittenRows
    watched: Connection | None = None


@dataclass(eq=False)
class Write:
    """A chunk that is being written. Only the loop changes it."""

    chunk: Chunk
    mark_name: bytes = b""  # of its mark in the ledger
    shares: Sequence[StreamRows] = ()  # its rows by stream
    rest: UnwrittenRows = field(init=False)
    state: State = field(default=State.PREPARED, init=False)
    pipe: Pipe | None = field(default=None, init=False)  # over which it was sent last; None: not sent, or lost
    count: int = field(default=0, init=False)  # number of commands that were sent
    result: ReplyResult | None = field(default=None, init=False)  # of these commands, until the next comparison
    watched: Connection | None = field(default=None, init=False)  # as in Comparison
    stream: bytes = field(init=False)  # one of its streams: all are on one server

    def __post_init__(self) -> None:
        self.stream = self.chunk.stream_names[0]
        self.begin()

    def begin(self) -> None:
        """Reset: all rows are to be sent."""
        self.rest, self.result, self.watched = UnwrittenRows(self.chunk, self.shares), None, None


class Delivery(ABC):
    """Exactly once (exactly_once.py) or at least once (at_least_once.py). Methods that are not abstract are for
    delivery without a ledger.

    A method that takes a server uses it while no reply is outstanding, and may be run again after a lost connection.
    """

    # Packed commands before a chunk's commands, and after them.
    frame: tuple[bytes, bytes] = (b"", b"")

    # -- rows are received --------------------------------------------------------------------------------------

    def has_unread_ledger(self, chunk: Chunk) -> bool:
        """Whether the chunk has rows for a stream whose ledger this task has not read yet."""
        return False

    def read_ledgers(self, chunk: Chunk, server: Server) -> None:  # noqa: B027 - not abstract on purpose
        """Read the ledgers of the chunk's streams. Raises LedgerError, ServerError."""

    def accept(self, chunk: Chunk) -> Iterable[Write]:
        """Count the rows. Return the writes of the chunk."""
        return [Write(chunk)]

    def require_all_matched(self, server: Server) -> None:  # noqa: B027 - not abstract on purpose
        """When all rows are received, require that they include all rows that earlier attempts have written. Raises
        LedgerError."""

    def totals(self) -> dict[bytes, Total]:
        """Return by stream the rows received and the sum of their fingerprints; empty without a ledger."""
        return {}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def choose_path(self, write: Write) -> Event:
        """Return the event that decides the chunk's path: NO_OTHER_WRITER, MUST_COMPARE, NO_LEDGER or
        NONE_MISSING."""
        return Event.NO_LEDGER

    @abstractmethod
    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        """Return the commands for the rows that are not written yet. extra: further packed commands."""

    def expected(self, write: Write) -> bytes:
        """Return the replies to the checks if the ledger has not changed."""
        return b""

    @abstractmethod
    def read_replies(self, write: Write, replies: bytes) -> ReplyResult:
        """Return what the replies to the commands and to the frame around them say."""

    @abstractmethod
    def compare(self, server: Server, write: Write) -> Comparison:
        """Find out which rows are missing. Raises LedgerError, EntryIdError, ServerError."""

    def on_executed(self, write: Write) -> None:  # noqa: B027 - not abstract on purpose
        """Record that the server has executed the chunk."""

    def correct_mark(self, server: Server, write: Write) -> None:  # noqa: B027 - not abstract on purpose
        """Remove rows that the server has refused from the chunk's mark. May be run again."""

    # -- durability ---------------------------------------------------------------------------------------------

    def require_written(self, server: Server) -> None:  # noqa: B027 - not abstract on purpose
        """If it is another server than before, require that it has all chunks that were executed. Raises LedgerError,
        ServerError."""

    @abstractmethod
    def prepare_wait(self, server: Server) -> list[bytes]:
        """Write over each connection, because WAIT covers only the writes of its own connection. Return the streams to
        wait for. Raises ReplicationError."""
