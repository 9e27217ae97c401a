"""A task's write: cut its rows into chunks, and send them exactly once or at least once, as the delivery says.

ChunkWriter is one loop for both. With a ledger, two chunks overlap on each connection. Time goes down; ECHO ends each
group of replies:

    chunk n                                          chunk n + 1
    → EXEC ECHO
                                                     → WATCH head marks   HMGET head …   HLEN marks   ECHO    checks
                                                     → MULTI   XADD …   XTRIM   HSET marks …   INCRBY written
    ← ids; nil: head or marks changed since WATCH
                                                     ← replies to the checks: is the ledger as this task knows it?
                                                     → EXEC ECHO
                                                                                          chunk n + 2: → WATCH …

So the server executes one chunk while the task builds the next one. With a ledger a connection has at most one chunk in
EXECUTING and one in QUEUED; without a ledger it has at most two in EXECUTING. The checks find what has changed between
this task's last read of the ledger and WATCH; WATCH finds what changes after that. chunk_states.py says what follows
each event.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.balance import Total
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import wait_for_replicas
from spark_streams.connector.sink.chunk_states import AFTER_ALL_REPLIES, Action, Event, State, advance
from spark_streams.connector.sink.chunks import Chunk, Destination, encode_chunks, split_by_slot
from spark_streams.connector.sink.delivery import AtLeastOnce, Delivery, ExactlyOnce, Write
from spark_streams.connector.sink.feedback import Feedback
from spark_streams.connector.sink.ledger_view import LedgerViews
from spark_streams.connector.sink.pace import Pace
from spark_streams.connector.sink.row_errors import ServerLimits, error_of_row
from spark_streams.connector.sink.trim import Trimmer
from spark_streams.connector.wire.connection import ReplyError, Server, pack
from spark_streams.connector.wire.session import Pipe, Session

_LEDGER = ("EXEC", "(the sink's ledger)")  # the refused command, in messages

Happened = tuple[Write, Event]


@dataclass(frozen=True)
class SinkTask:
    """Part of a batch that a task writes. partition: of the batch; attempt: name of one execution of it, without a
    dot."""

    batch: Batch
    partition: int = 0
    attempt: str = field(default_factory=lambda: secrets.token_hex(6))


@dataclass(frozen=True)
class TaskResult:
    """rows: number of the task's rows; totals: by stream, empty without a ledger."""

    rows: int
    totals: dict[bytes, Total]


def append(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    task: SinkTask | None,
    pace: str = "",
    query: MicroBatchName | None = None,
    letters: bool = False,
) -> TaskResult:
    """Append every row to its stream. task: None for at-least-once; pace: a name that the tasks of a write share, for
    option rowsPerSecond; query: the micro-batch that writes the rows; letters: they are dead letters of
    `route_dead_letters`. The driver was connected before, so the task waits for an unreachable server.

    Raises InvalidOptionError if the query would read what it writes, SchemaError, EntryIdError for a row that cannot be
    an entry, LedgerError if rows differ from those of an earlier attempt, RetriesExhaustedError if the server stays
    unusable, ServerReplyError (or a subclass) for a refused command, ReplicationError.
    """
    address = options.address
    with Session(address, is_known=True) as session:
        trimmer, limits = Trimmer(session, options), ServerLimits(address)
        paced = Pace(address, pace, options.rows_per_second)
        try:
            to = Destination.from_options(options)
            feedback = Feedback(query, letters, to)
            size = paced.chunk_size(options.chunk_size)
            parts = encode_chunks(feedback.seen(batches), to, options.nulls, size, task is not None)
            if address.is_cluster:
                parts = split_by_slot(parts)
            delivery: Delivery = AtLeastOnce()
            if task is not None:
                delivery = ExactlyOnce(LedgerViews(task.batch, task.partition, task.attempt, address.is_cluster))
            rows = ChunkWriter(session, delivery, feedback, trimmer, limits, paced, options.wait_replicas).run(parts)
        finally:
            trimmer.close()
            paced.close()
    return TaskResult(rows, delivery.totals())


@dataclass
class ChunkWriter:
    """Writes chunks over a session.

    Raises LedgerError, the named error of a row that the server refuses for good, RowTooLargeError, ReplicationError,
    RetriesExhaustedError.
    """

    session: Session
    delivery: Delivery
    feedback: Feedback
    trimmer: Trimmer
    limits: ServerLimits
    pace: Pace
    replicas: int | None = None  # number of replicas that must have the chunks (waitReplicas), None: do not wait
    # sent, and replies not read yet; in the order of replies for each connection
    under_way: list[Write] = field(default_factory=list)

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Write all rows that are not written yet. Return the number of rows, written before or now."""
        rows = 0
        for chunk in chunks:
            rows += len(chunk)
            if self.feedback.is_new(chunk):
                self._read_all_replies()  # the commands of the next line need idle connections
                self.session.run_part(functools.partial(self.feedback.admit, chunk))
            if self.limits.needs_limits(chunk):
                self._read_all_replies()
                self.session.run_part(self.limits.read_limits)
            for part in self.limits.split(chunk):
                if self.delivery.has_unread_ledger(part):
                    self._read_all_replies()
                    self.session.run_part(functools.partial(self.delivery.read_ledgers, part))
                for write in self.delivery.accept(part):  # as far as possible without waiting for its own EXEC
                    self._handle_events((write, Event.TURN))
        if rows:
            self._read_all_replies()
            self.session.run_part(self.delivery.require_all_matched)
            self.session.run_part(self._wait_for_replicas)
        return rows

    def _read_all_replies(self) -> None:
        """Read replies until none is outstanding."""
        while self.under_way:
            self._handle_events((self.under_way[0], Event.TURN))

    def _handle_events(self, *happened: Happened) -> None:
        """Follow the table until no event is left. Events are a stack: the events that an action returns are handled
        before the events that were waiting.

        A TURN may come after its chunk has moved on. In PREPARED it starts the chunk again: so a chunk that was
        DISCARDED is sent again. In other states it reads the next replies, repeats a read, or does nothing.
        """
        events = list(reversed(happened))
        while events:
            write, event = events.pop()
            step = advance(write.state, event)
            if step.action in AFTER_ALL_REPLIES and self.under_way:
                # Read the outstanding replies first, then handle this event again. The state does not change yet.
                events += [(write, event), (self.under_way[0], Event.TURN)]
                continue
            write.state = step.state
            if step.action is Action.FAIL:
                raise self._error(write)
            try:
                follows = _ACTIONS[step.action](self, write)
            except RStreamError as error:
                follows = self._retry_or_raise(write, error)
            events += reversed(follows)

    # -- the fast path ------------------------------------------------------------------------------------------

    def _start(self, write: Write) -> list[Happened]:
        if not self.under_way:
            self.delivery.require_written(self.session.get())
        pipe = self.session.pipe_of(write.stream)
        for other in self.under_way:
            if other.pipe is not pipe and not {*other.chunk.stream_names}.isdisjoint(write.chunk.stream_names):
                # A slot was moved to another node. The other chunk of this stream comes first: rows stay in order.
                return [(other, Event.TURN), (write, Event.TURN)]
        return [(write, self.delivery.choose_path(write))]

    def _queue(self, write: Write) -> list[Happened]:
        pipe = self.session.pipe_of(write.stream)
        begin, _ = self.delivery.frame
        before = self._transmit(write, pipe, pipe.end_marker + begin, b"", with_checks=True)
        return [*before, (write, Event.TURN)]

    def _confirm(self, write: Write) -> list[Happened]:
        pipe = _pipe_of(write)
        if pipe.take() == self.delivery.expected(write):
            return [(write, Event.CONFIRMED)]
        _discard(pipe)
        self.under_way.remove(write)
        return [(write, Event.CHANGED)]

    def _execute(self, write: Write) -> list[Happened]:
        pipe = _pipe_of(write)
        _, end = self.delivery.frame
        pipe.send(end, pipe.end_marker)
        return []

    def _send(self, write: Write) -> list[Happened]:
        pipe = self.session.pipe_of(write.stream)
        return self._transmit(write, pipe, b"", pipe.end_marker)

    def _transmit(
        self, write: Write, pipe: Pipe, begin: bytes, end: bytes, with_checks: bool = False
    ) -> list[Happened]:
        """Send the commands for the rows that are missing. with_checks: send the checks before them. Return a TURN for
        each chunk that was sent before it on this connection, because their replies come first."""
        self.pace.wait(len(write.rest.to_send))
        request = self.delivery.request(write, self.trimmer.commands(write.chunk))
        write.pipe, write.count, write.result = pipe, request.count, None
        pipe.send((request.checks if with_checks else b"") + begin, request.rows, b"".join([*request.extra, end]))
        before = [(other, Event.TURN) for other in self.under_way if other.pipe is pipe]
        self.under_way.append(write)
        return before

    def _read_replies(self, write: Write) -> list[Happened]:
        pipe = _pipe_of(write)
        result = self.delivery.read_replies(write, pipe.take())
        happened = [(write, result.event)]
        behind = [other for other in self.under_way if other.pipe is pipe and other.state is State.QUEUED]
        if behind and result.event is not Event.EXECUTED:
            pipe.take()  # the replies to its checks
            _discard(pipe)
            self.under_way.remove(behind[0])
            happened.insert(0, (behind[0], Event.DISCARDED))
        self.under_way.remove(write)
        write.result = result
        return happened

    def _settle(self, write: Write) -> list[Happened]:
        self.delivery.on_executed(write)
        self.session.backoff.succeeded()
        self.trimmer.trim_after(write.chunk)
        return []

    # -- the connection is lost, or the server refuses a chunk for now ---------------------------------------------

    def _retry_or_raise(self, write: Write, error: RStreamError) -> list[Happened]:
        """Wait before a retry after a lost connection or a temporary error. Raises any other error.

        All chunks whose replies were not read are LOST: the session closes all its connections."""
        lost = self.under_way if write in self.under_way else [*self.under_way, write]
        self.session.wait_before_retry(error)
        self.under_way = []
        for lost_write in lost:
            lost_write.pipe = None
        return [(lost_write, Event.LOST) for lost_write in lost]

    def _pause(self, write: Write) -> list[Happened]:
        assert write.result is not None
        assert write.result.temporary_refusal is not None
        try:
            self.session.wait_before_retry(write.result.temporary_refusal)
        except ReplyError as refusal:
            raise self.session.get().error_of(refusal, _LEDGER) from None
        return [(write, Event.TURN)]

    # -- comparing with the ledger: no reply is outstanding -------------------------------------------------------

    def _compare(self, write: Write) -> list[Happened]:
        server = self.session.get()
        self.delivery.require_written(server)
        comparison = self.delivery.compare(server, write)
        write.rest, write.watched, write.result = comparison.rest, comparison.watched, None
        return [(write, comparison.event)]

    def _send_rest(self, write: Write) -> list[Happened]:
        pipe = self.session.pipe_of(write.stream)
        if write.watched is not None and pipe.server is not write.watched:
            return [(write, Event.CHANGED)]  # the slot was moved: WATCH and EXEC must use the same connection
        begin, end = self.delivery.frame
        self._transmit(write, pipe, begin, end + pipe.end_marker)
        return [(write, Event.TURN)]

    # -- the server refuses rows for good -------------------------------------------------------------------------

    def _correct_mark(self, write: Write) -> list[Happened]:
        self.delivery.correct_mark(self.session.get(), write)
        return [(write, Event.MARK_CORRECTED)]

    def _error(self, write: Write) -> RStreamError:
        """Return the named error of the first command that was refused: of a row, or of a further command."""
        assert write.result is not None
        place, refusal = next(iter(write.result.refused.items()))
        if place < len(write.rest.to_send):
            return error_of_row(self.session.get(), write.rest.to_send, place, refusal)
        return self.session.get().error_of(refusal, ("XTRIM", write.stream))

    # -- durability ---------------------------------------------------------------------------------------------

    def _wait_for_replicas(self, server: Server) -> None:
        """Require that this server has all chunks, then WAIT if waitReplicas is set, also for rows that other attempts
        have written."""
        self.delivery.require_written(server)
        if self.replicas is not None:
            wait_for_replicas(server, self.replicas, self.delivery.prepare_wait(server))


_ACTIONS: Mapping[Action, Callable[[ChunkWriter, Write], list[Happened]]] = {
    Action.START: ChunkWriter._start,
    Action.QUEUE: ChunkWriter._queue,
    Action.CONFIRM: ChunkWriter._confirm,
    Action.EXECUTE: ChunkWriter._execute,
    Action.SEND: ChunkWriter._send,
    Action.READ_REPLIES: ChunkWriter._read_replies,
    Action.PAUSE: ChunkWriter._pause,
    Action.COMPARE: ChunkWriter._compare,
    Action.SEND_REST: ChunkWriter._send_rest,
    Action.CORRECT_MARK: ChunkWriter._correct_mark,
    Action.SETTLE: ChunkWriter._settle,
    Action.NOTHING: lambda writer, write: [],
}


def _pipe_of(write: Write) -> Pipe:
    """Return the connection that the chunk was sent over."""
    assert write.pipe is not None
    return write.pipe


def _discard(pipe: Pipe) -> None:
    """Discard the commands queued behind MULTI."""
    pipe.send(pack("DISCARD"), pipe.end_marker)
    pipe.take()
