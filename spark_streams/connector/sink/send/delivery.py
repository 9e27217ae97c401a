"""Interface of exactly once and at least once, and the simpler of the two.

A delivery builds the pipelined commands of a chunk, and turns their replies into an event. The loop (chunk_writer.py)
sends the commands and follows the table. A method that takes a server sends its own commands. exactly_once.py writes
with a ledger.

At least once: plain pipelined XADDs, and no ledger. Rows that the server refuses for a temporary reason
(wire.session) are sent again alone, after all outstanding replies. If the connection is lost, the complete
chunk is sent again, because the task cannot know how much of it arrived. Both may change the order of entries; the
second may write some entries twice.

If the server refuses a row because its explicit ID is too low, the task looks for the row in the stream: a batch that
is replayed finds the rows that it has written before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.connector.errors import ReplicationError
from spark_streams.connector.sink.encode.chunks import Chunk
from spark_streams.connector.sink.encode.fingerprint import Hashes, Mask
from spark_streams.connector.sink.encode.row_errors import first_unwritten, id_refused, refuses_own_id
from spark_streams.connector.sink.ledger.balance import Total
from spark_streams.connector.sink.ledger.ledger_view import LedgerView, StreamRows
from spark_streams.connector.sink.send.chunk_states import Event, State
from spark_streams.connector.wire.connection import Connection, ReplyError, Server
from spark_streams.connector.wire.replies import find_errors, is_id_form_unknown, may_hold_errors, parse_replies
from spark_streams.connector.wire.session import Pipe, is_transient


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
    """Exactly once (exactly_once.py) or at least once (AtLeastOnce). Methods that are not abstract are for
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


class AtLeastOnce(Delivery):
    """Without a ledger."""

    def __init__(self) -> None:
        self._connections: dict[bytes, Connection | None] = {}  # by stream: that have executed its chunks

    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        """Return the rows' XADDs."""
        fresh = write.rest.to_send
        return Request(b"", fresh.requests.slice(0, len(fresh)), extra, len(fresh) + len(extra))

    def read_replies(self, write: Write, replies: bytes) -> ReplyResult:
        """Return the result of the replies to `request`."""
        if not may_hold_errors(replies):
            return ReplyResult(Event.EXECUTED)
        sent, temporary_refusal = write.rest.to_send, None
        to_retry, doubtful = np.zeros(len(sent), np.bool_), np.zeros(len(sent), np.bool_)
        for place, refusal in find_errors(parse_replies(replies)):
            if place < len(sent) and refuses_own_id(sent, place, refusal) and not is_id_form_unknown(refusal):
                doubtful[place] = True
            elif not is_transient(refusal):
                return ReplyResult(Event.ROWS_REFUSED, refused={place: refusal})
            else:
                temporary_refusal = refusal
                to_retry[place : place + 1] = True  # commands behind the rows, such as XTRIM, are sent each time
        event = Event.CHANGED if temporary_refusal is None else Event.REFUSED_FOR_NOW
        return ReplyResult(event, {}, temporary_refusal, sent.filter(to_retry), sent.filter(doubtful))

    def compare(self, server: Server, write: Write) -> Comparison:
        """Require that rows that were refused for their IDs are in their stream. Raises EntryIdError."""
        result = write.result
        if result is None or result.to_retry is None or result.doubtful is None:  # the connection was lost
            return Comparison(Event.ROWS_MISSING, write.rest)
        place = first_unwritten(server, result.doubtful)
        if place is not None:
            raise id_refused(server, result.doubtful, place)
        event = Event.NONE_MISSING if result.temporary_refusal is None else Event.ROWS_MISSING
        return Comparison(event, UnwrittenRows(result.to_retry))

    def on_executed(self, write: Write) -> None:
        """Record the connection that has executed the chunk; None: it was lost before all replies were read."""
        connection = None if write.pipe is None else write.pipe.server
        for stream in write.chunk.stream_names:
            self._connections[stream] = connection if self._connections.get(stream, connection) is connection else None

    def prepare_wait(self, server: Server) -> list[bytes]:
        """Return the streams: their connections have written all chunks. Raises ReplicationError if one was lost: WAIT
        does not cover what was written over it."""
        for stream, connection in self._connections.items():
            if connection is not server.connection_for(stream):
                shown = stream.decode("utf-8", "replace")
                raise ReplicationError(
                    f"the connection to {server.address} was lost while rows of this task were written, so it is not "
                    f"known whether replicas (waitReplicas) have them all, for example those of stream {shown!r}. A "
                    "retry of the task writes them again"
                )
        return list(self._connections)
