"""The two deliveries of a chunk: exactly once and at least once.

A delivery builds the pipelined commands of a chunk, and turns their replies into an event. The loop (chunk_writer.py)
sends the commands and follows the table. A method that takes a server sends its own commands.

**At least once**: plain pipelined XADDs, and no ledger. Rows that the server refuses for a temporary reason
(wire.session) are sent again alone, after all outstanding replies. If the connection is lost, the complete
chunk is sent again, because the task cannot know how much of it arrived. Both may change the order of entries; the
second may write some entries twice.

If the server refuses a row because its explicit ID is too low, the task looks for the row in the stream: a batch that
is replayed finds the rows that it has written before.

**Exactly once**: each chunk is one transaction with its mark in the ledger. ledger.py explains batch, run, partition,
attempt and mark.

Another run. If the driver was killed, the next driver runs the batch again, perhaps with rows in other partitions. Its
tasks read which rows the killed run has written. A task *claims* such a row in its own mark instead of writing it. The
key `claims`, which it WATCHes, lets only one task claim each row.

Retry. A task that finds marks of its own partition when it begins is a retry. It compares each chunk with them, and
writes the rows that they do not name. If it ends without having received all rows that they name, its rows are not
those of the earlier attempt, and it fails.

Lost reply. If the connection breaks after EXEC was sent, the task connects again, WATCHes and reads its own marks. If
the chunk's mark exists, the server has executed the chunk. If not, the task sends the rows again under the same mark
name. If the server executes the old EXEC only then, the mark that it writes breaks the new WATCH. If the server reaches
the old EXEC after the new one, the old WATCH is broken.

Another attempt at the same time (speculation). Both WATCH the marks of their partition. The one whose EXEC comes second
gets nil, compares, and sends only the rows that the other one's marks do not name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.connector.errors import ReplicationError
from spark_streams.connector.sink import refusals
from spark_streams.connector.sink.balance import Total
from spark_streams.connector.sink.batch_commit import touched
from spark_streams.connector.sink.chunk_states import Event, State
from spark_streams.connector.sink.chunks import Chunk
from spark_streams.connector.sink.fingerprint import Hashes, Mask, Multiset
from spark_streams.connector.sink.ledger import Command, expiry, pack_mark
from spark_streams.connector.sink.ledger_view import LedgerView, LedgerViews, StreamRows, open_views
from spark_streams.connector.sink.row_errors import (
    first_refused,
    first_unwritten,
    id_refused,
    refuses_own_id,
    split_after_generated_ids,
)
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError, Server, pack, parse_replies
from spark_streams.connector.wire.parts import in_parts
from spark_streams.connector.wire.replies import (
    WATCHED_TRIES,
    Outcome,
    find_errors,
    is_id_form_unknown,
    is_no_such_key,
    may_hold_errors,
    transact,
)
from spark_streams.connector.wire.session import Pipe, is_transient
from spark_streams.connector.wire.xinfo import read_stream_state


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
    comparisons: int = field(default=0, init=False)  # so far
    stream: bytes = field(init=False)  # one of its streams: all are on one server

    def __post_init__(self) -> None:
        self.stream = self.chunk.stream_names[0]
        self.begin()

    def begin(self) -> None:
        self.rest, self.result, self.watched = UnwrittenRows(self.chunk, self.shares), None, None


class Delivery(ABC):
    """ExactlyOnce or AtLeastOnce. Methods that are not abstract are for delivery without a ledger.

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
        LedgerError, unless the source reports that entries of the batch were lost."""

    def totals(self) -> dict[bytes, Total]:
        """Return by stream the rows received and the sum of their fingerprints; empty without a ledger."""
        return {}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def choose_path(self, write: Write) -> Event:
        """Return the event that decides the chunk's path: NO_LEDGER, or NO_OTHER_WRITER if no other attempt or run has
        written rows to its streams, MUST_COMPARE if its rows are to be compared with the ledger first, NONE_MISSING if
        the batch is complete."""
        return Event.NO_LEDGER

    @abstractmethod
    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        """Return the commands for the rows that are not written yet. extra: further packed commands."""

    def expected(self, write: Write) -> bytes:
        """Return the replies to the checks if the ledger has not changed."""
        return b""

    @abstractmethod
    def read_replies(self, write: Write, replies: bytes) -> ReplyResult:
        """Return what the replies to the commands and to the frame around them say. Raises as `_parsed` does."""

    def _parsed(self, write: Write, raw: bytes) -> list[Reply]:
        """Raises the named error of a refused end marker: the next group's replies follow it."""
        replies = parse_replies(raw)
        own = write.count + sum(map(bool, self.frame))
        if write.pipe is not None and len(replies) > own:
            write.pipe.server.answer(("ECHO",), replies[own])
        return replies

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
    def prepare_wait(self, server: Server) -> Sequence[bytes]:
        """Write over each connection: WAIT covers only its own writes. Return keys of the servers to wait for. Raises
        ReplicationError."""


class AtLeastOnce(Delivery):
    """Without a ledger."""

    def __init__(self) -> None:
        self._connections: dict[bytes, Connection | None] = {}  # by stream: that have executed its chunks

    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        fresh = write.rest.to_send
        return Request(b"", fresh.requests.slice(0, len(fresh)), extra, len(fresh) + len(extra))

    def read_replies(self, write: Write, replies: bytes) -> ReplyResult:
        if not may_hold_errors(replies):
            return ReplyResult(Event.EXECUTED)
        sent, temporary_refusal = write.rest.to_send, None
        to_retry, doubtful = np.zeros(len(sent), np.bool_), np.zeros(len(sent), np.bool_)
        for place, refusal in find_errors(self._parsed(write, replies)):
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

    def prepare_wait(self, server: Server) -> Sequence[bytes]:
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


# -- exactly once ------------------------------------------------------------------------------------------------------

_NOTHING: Hashes = np.empty(0, np.uint64)
_OK = b"+OK\r\n"
_QUEUED = b"+QUEUED\r\n"


class ExactlyOnce(Delivery):
    """With a ledger."""

    frame = (pack("MULTI"), pack("EXEC"))

    def __init__(self, views: LedgerViews) -> None:
        self._views = views
        self._numbered = 0
        self._server: Server | None = None  # the last server that had all executed chunks

    # -- rows are received --------------------------------------------------------------------------------------

    def has_unread_ledger(self, chunk: Chunk) -> bool:
        return not all(view.opened for view in self._views.views_of(chunk.stream_names))

    def read_ledgers(self, chunk: Chunk, server: Server) -> None:
        open_views(server, self._views, self._views.views_of(chunk.stream_names))
        self._server = self._server or server

    def accept(self, chunk: Chunk) -> Iterable[Write]:
        shares = self._views.shares(chunk)
        for share in shares:
            share.view.count(share.hashes)
        return self._writes(chunk, shares)

    def _writes(self, chunk: Chunk, shares: Sequence[StreamRows]) -> list[Write]:
        """Return the chunk, or pieces of it if its rows have explicit IDs."""
        if not shares:
            return []
        pieces = [(chunk, shares)]
        if chunk.ids is not None:
            pieces = [(piece, self._views.shares(piece)) for piece in split_after_generated_ids(chunk)]
        first, self._numbered = self._numbered + 1, self._numbered + len(pieces)
        return [
            Write(piece, self._views.attempt + b"%d" % number, of_piece)
            for number, (piece, of_piece) in enumerate(pieces, first)
        ]

    def require_all_matched(self, server: Server) -> None:
        batch = self._views.batch
        for view in self._views.all():
            if view.done or not view.unmatched.size:
                continue
            if not batch.read_kind(server.execute(*batch.kind_command)).lossy:
                raise refusals.other_attempt(batch, view.shown, self._views.partition, view.unmatched.size)
            view.unmatched = Multiset()

    def totals(self) -> dict[bytes, Total]:
        return {view.stream: Total(view.rows, view.total) for view in self._views.all()}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def choose_path(self, write: Write) -> Event:
        if all(share.view.done for share in write.shares):
            return Event.NONE_MISSING
        is_free = write.chunk.ids is None and all(share.view.is_untouched for share in write.shares)
        return Event.NO_OTHER_WRITER if is_free else Event.MUST_COMPARE

    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        to_send = write.rest.to_send
        checks = b"".join([pack(*command) for command in _checks(write)])
        extra = [*extra, *[pack(*command) for command in self._ledger_commands(write)]]
        return Request(checks, to_send.requests.slice(0, len(to_send)), extra, len(to_send) + len(extra))

    def expected(self, write: Write) -> bytes:
        watches = len(_checks(write)) - 2 * len(write.shares)
        return _OK * watches + b"".join([share.view.expected() for share in write.shares])

    def _ledger_commands(self, write: Write) -> list[Command]:
        """Return the commands that record the chunk in the ledger: rows to send as written, other rows as claimed."""
        commands: list[Command] = []
        for view, written, claims in _rows_of_mark(write.rest):
            written_key, claims_key = view.keys.part("written"), view.keys.part("claims")
            keys = [view.marks, written_key]
            commands.append(("HSET", view.marks, write.mark_name, pack_mark(written, claims)))
            commands.append(("INCRBY", written_key, len(written)))
            if len(claims):
                keys.append(claims_key)
                commands.append(("APPEND", claims_key, claims.astype("<u8").tobytes()))
            if not view.own_marks or len(claims):  # the first mark or claim: list the keys in `parts`
                commands.append(("SADD", view.keys.parts, *[key[len(view.keys.head) + 1 :] for key in keys]))
                keys.append(view.keys.parts)
            if self._views.batch.expires:
                commands += expiry(self._views.batch, *keys, *view.prolong())
        return commands

    def read_replies(self, write: Write, replies: bytes) -> ReplyResult:
        if _went_well(write.count, replies):
            return ReplyResult(Event.EXECUTED)
        outcome = Outcome.read(self._parsed(write, replies))
        if outcome.refusal is not None:
            return ReplyResult(Event.REFUSED_FOR_NOW, temporary_refusal=outcome.refusal)
        if outcome.results is None:
            return ReplyResult(Event.CHANGED)
        refused = dict(find_errors(outcome.results))
        return ReplyResult(Event.ROWS_REFUSED if refused else Event.EXECUTED, refused=refused)

    def on_executed(self, write: Write) -> None:
        for view, _, claims in _rows_of_mark(write.rest):
            view.add_own_mark(write.mark_name, claims)
        for view, hashes in write.rest.matched:
            view.mark_executed(write.mark_name, hashes)

    # -- rows may be written already ----------------------------------------------------------------------------

    def compare(self, server: Server, write: Write) -> Comparison:
        """WATCH and read the ledger, and find the missing rows. Raises LedgerError, EntryIdError, ServerError."""
        node = server.connection_for(write.stream)
        tops = self._read(node, write)
        rest = self._rest(write)
        if not rest.marked:
            node.execute("UNWATCH")
            return Comparison(Event.NONE_MISSING, rest)
        if rest.to_send.ids is not None:
            for stream, start, stop in rest.to_send.segments:
                top = read_stream_state(server, stream, tops[stream]).last
                place = first_refused(rest.to_send.ids.values.slice(start, stop - start), top)
                if place is not None:
                    raise id_refused(server, rest.to_send, start + place)
        return Comparison(Event.ROWS_MISSING, rest, watched=node)

    def _read(self, server: Connection, write: Write) -> Mapping[bytes, Reply]:
        """WATCH the chunk's ledgers, and update the views. If its rows have IDs, WATCH the streams, too, and return the
        XINFO STREAM of each: IDs must be above its last one."""
        explicit = write.chunk.stream_names if write.chunk.ids is not None else []
        write.comparisons += 1
        checks = _checks(write, *(explicit if write.comparisons <= WATCHED_TRIES else []))
        described = [("XINFO", "STREAM", stream) for stream in explicit]
        replies = server.execute_all([*checks, *described], is_no_such_key)
        answers = replies[len(checks) - 2 * len(write.shares) : len(checks)]
        for share, head, length in zip(write.shares, answers[0::2], answers[1::2], strict=True):
            share.view.refresh(server, head, length)
        return dict(zip(explicit, replies[len(checks) :], strict=True))

    def _rest(self, write: Write) -> UnwrittenRows:
        """Return the rows that are missing by the views."""
        chunk = write.chunk
        is_missing, claimed = np.zeros(len(chunk), np.bool_), np.zeros(len(chunk), np.bool_)
        matched: list[tuple[LedgerView, Hashes]] = []
        for share in write.shares:
            view, hashes = share.view, share.hashes
            recovered = view.recovered.get(write.mark_name)
            if recovered is not None:
                # The reply to EXEC was lost, but EXEC was executed: the mark names the rows that this chunk wrote. Its
                # other rows are those that other attempts wrote.
                matched.append((view, hashes[~Multiset.from_hashes(recovered).matching(hashes)]))
            elif not view.done:
                is_matched = view.unmatched.matching(hashes)
                matched.append((view, hashes[is_matched]))
                is_missing[share.places] = ~is_matched
                claimed[share.places.start + np.flatnonzero(~is_matched)] = view.unclaimed.matching(hashes[~is_matched])
        marked, claims = chunk.filter(is_missing), claimed[is_missing]
        return UnwrittenRows(marked.filter(~claims), self._views.shares(marked), claims, matched)

    def correct_mark(self, server: Server, write: Write) -> None:
        """Remove rows that the server has refused from the mark: a refusal does not undo the rest of a transaction. May
        be run again: a corrected mark is not changed."""
        assert write.result is not None
        sent = len(write.rest.to_send)
        is_refused = np.zeros(sent, np.bool_)
        is_refused[[place for place in write.result.refused if place < sent]] = True
        corrections: list[Command] = []
        before = 0
        for view, written, claims in _rows_of_mark(write.rest):
            refused = is_refused[before : before + len(written)]
            before += len(written)
            mark = server.execute("HGET", view.marks, write.mark_name)
            if refused.any() and mark == pack_mark(written, claims):
                corrections.append(("HSET", view.marks, write.mark_name, pack_mark(written[~refused], claims)))
                corrections.append(("DECRBY", view.keys.part("written"), int(refused.sum())))
        if corrections:
            transact(server, corrections)

    # -- durability ---------------------------------------------------------------------------------------------

    def require_written(self, server: Server) -> None:
        """If the connection is new, require that the server has all own marks: a replica that lagged behind may have
        become the master. Raises LedgerError: then the task must be tried again."""
        if self._server is None or server is self._server:
            return
        views = [view for view in self._views.all() if view.own_marks and not view.done]
        names = server.execute_all([("HKEYS", view.marks) for view in views])
        for view, server_marks in zip(views, names, strict=True):
            if lost := view.own_marks.difference(server_marks):
                raise refusals.vanished_meanwhile(self._views.batch, view.shown, len(lost))
        self._server = server

    def prepare_wait(self, server: Server) -> Sequence[bytes]:
        return touched(server, [view.marks for view in self._views.all()])


def _checks(write: Write, *keys: bytes) -> list[Command]:
    """Return WATCH, and the commands whose replies `expected` predicts. keys: other keys to WATCH."""
    checks_of_views = [share.view.checks() for share in write.shares]
    watched = [key for keys, _ in checks_of_views for key in keys]
    watches = [tuple(part) for part in in_parts(("WATCH", *watched, *keys))]
    return [*watches, *[check for _, checks in checks_of_views for check in checks]]


def _rows_of_mark(rest: UnwrittenRows) -> Iterator[tuple[LedgerView, Hashes, Hashes]]:
    """Yield for each stream (view, fingerprints of the rows to send, fingerprints of the rows to claim)."""
    for share in rest.marked:
        if rest.claimed is None:
            yield share.view, share.hashes, _NOTHING
        else:
            claimed = rest.claimed[share.places]
            yield share.view, share.hashes[~claimed], share.hashes[claimed]


def _went_well(commands: int, replies: bytes) -> bool:
    """Whether this many commands were queued, and EXEC has executed them without an error."""
    head = len(_OK) + len(_QUEUED) * commands
    return replies.startswith(b"*%d\r\n" % commands, head) and replies.find(b"\n-", head) < 0
