"""Exactly once: each chunk is one transaction with its mark in the ledger (ledger.py).

Retry. A task that finds marks of its own partition when it begins is a retry. Until it has received all rows that
these marks name, it writes nothing: it holds other rows back, beyond 64 MB in a file. If it ends without having
received them, its rows are not those of the earlier attempt, and it fails with nothing written.

Lost reply. If the connection breaks after EXEC was sent, the task connects again, WATCHes and reads its own marks. If
the chunk's mark is there, the server has executed it. If not, the task sends the rows again under the same mark name.
If the server executes the old EXEC only then, the mark that it writes breaks the new WATCH; if it comes to it after the
new EXEC, the old WATCH is broken.

Another attempt at the same time (speculation). Both WATCH the marks of their partition. The one whose EXEC comes second
gets nil, compares, and sends only the rows that the other one's marks do not name. As long as the other attempt has
written rows that this one has not received, this one compares each chunk, and holds back the chunks behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from spark_streams.sink.encode.chunks import Chunk
from spark_streams.sink.encode.fingerprint import Hashes, Multiset
from spark_streams.sink.encode.row_errors import first_refused, id_refused, with_known_tops
from spark_streams.sink.encode.spill_queue import SpillQueue
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.balance import Total
from spark_streams.sink.ledger.join import open_views
from spark_streams.sink.ledger.ledger import Command, expiry, pack_mark
from spark_streams.sink.ledger.ledger_view import LedgerView, LedgerViews, Share
from spark_streams.sink.send.chunk_states import Event
from spark_streams.sink.send.delivery import Delivery, Findings, Request, Rest, Verdict, Write
from spark_streams.wire.connection.connection import Connection, Reply, pack
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import Outcome, transact
from spark_streams.wire.replies.replies import errors_among, parse_replies
from spark_streams.wire.replies.xinfo import read_stream_state

_NOTHING: Hashes = np.empty(0, np.uint64)
_OK = b"+OK\r\n"
_QUEUED = b"+QUEUED\r\n"


class ExactlyOnce(Delivery):
    """With a ledger. held: where rows wait; its maker closes it."""

    frame = (pack("MULTI"), pack("EXEC"))

    def __init__(self, views: LedgerViews, held: SpillQueue) -> None:
        self._views = views
        self._held = held
        self._numbered = 0
        self._server: Server | None = None  # the one that was last found to have all executed chunks

    # -- rows are received --------------------------------------------------------------------------------------

    def needs_opening(self, chunk: Chunk) -> bool:
        """Whether the chunk has rows for a stream whose ledger this task has not read yet."""
        return not all(view.opened for view in self._views.of(chunk.stream_names))

    def open(self, chunk: Chunk, server: Server) -> None:
        """Read the ledgers of the chunk's streams. Raises LedgerError, ServerError."""
        open_views(server, self._views, self._views.of(chunk.stream_names))
        self._server = self._server or server

    def take_in(self, chunk: Chunk) -> Iterable[Write]:
        """Count the rows. A retry holds back its rows until it has met all that the attempts before it have written."""
        shares = self._views.shares(chunk)
        for share in shares:
            share.view.count(share.hashes)
        if not any(share.view.others.size for share in shares) and not self._held:
            return self._writes(chunk, shares)
        wanted = np.ones(len(chunk), np.bool_)
        for share in shares:  # what other attempts have written counts as met
            known = share.view.others.matching(share.hashes)
            share.view.others.remove(share.hashes[known])
            wanted[share.places] = ~known
        left = chunk.where(wanted)
        if any(view.others.size for view in self._views.all() if not view.done):
            self._held.add(left)
            return ()
        return itertools.chain(self.held_back(), self._writes(left, self._views.shares(left)))

    def _writes(self, chunk: Chunk, shares: Sequence[Share]) -> list[Write]:
        """The chunk, or pieces of it if its rows have ids of their own."""
        if not shares:
            return []
        pieces = [(chunk, shares)]
        if chunk.ids is not None:
            pieces = [(piece, self._views.shares(piece)) for piece in with_known_tops(chunk)]
        first, self._numbered = self._numbered + 1, self._numbered + len(pieces)
        return [
            Write(piece, self._views.attempt + b"%d" % number, of_piece)
            for number, (piece, of_piece) in enumerate(pieces, first)
        ]

    def require_all_matched(self, server: Server) -> None:
        """Called when all rows are received: require that they include all rows that earlier attempts have written.
        Raises LedgerError, unless the source says that it has fewer entries than an earlier attempt had."""
        batch = self._views.batch
        for view in self._views.all():
            if view.done or not view.others.size:
                continue
            if not batch.kind(server.execute(*batch.asks_kind)).lossy:
                raise refusals.other_attempt(batch, view.shown, self._views.partition, view.others.size)
            view.others = Multiset()

    def held_back(self) -> Iterator[Write]:
        """The rows that were held back."""
        for chunk in self._held.release():
            yield from self._writes(chunk, self._views.shares(chunk))

    def totals(self) -> dict[bytes, Total]:
        """By stream, the rows received and the sum of their fingerprints."""
        return {view.stream: Total(view.rows, view.total) for view in self._views.all()}

    # -- a chunk is written -------------------------------------------------------------------------------------

    def way(self, write: Write) -> Event:
        """FREE if no other attempt or run has written rows here; SHARED if the rows are to be compared with the ledger
        first; NONE_MISSING if the batch is complete."""
        if all(share.view.done for share in write.shares):
            return Event.NONE_MISSING
        is_free = write.chunk.ids is None and all(share.view.is_untouched for share in write.shares)
        return Event.FREE if is_free else Event.SHARED

    def request(self, write: Write, beside: Sequence[bytes]) -> Request:
        """The checks, the rows' XADDs, further commands, and the mark."""
        fresh = write.rest.fresh
        asked = b"".join([pack(*command) for command in _checks(write)])
        beside = [*beside, *[pack(*command) for command in self._marks(write)]]
        return Request(asked, fresh.requests.slice(0, len(fresh)), beside, len(fresh) + len(beside))

    def expected(self, write: Write) -> bytes:
        """The answers to the checks if the ledger has not changed."""
        return _OK + b"".join([share.view.expected() for share in write.shares])

    def _marks(self, write: Write) -> list[Command]:
        """The commands that mark rows as written, or as claimed."""
        commands: list[Command] = []
        for view, written, claims in _written_and_claimed(write.rest):
            commands.append(("HSET", view.marks, write.mark_name, pack_mark(written, claims)))
            names = [view.marks, view.keys.part("written")]
            commands.append(("INCRBY", names[-1], len(written)))
            if len(claims):
                names.append(view.keys.part("claims"))
                commands.append(("APPEND", names[-1], claims.astype("<u8").tobytes()))
            if not view.mine or len(claims):
                commands.append(("SADD", view.keys.parts, *[name[len(view.keys.head) + 1 :] for name in names]))
                names.append(view.keys.parts)
            if self._views.batch.expires:
                commands += expiry(self._views.batch, *names, *view.prolong())
        return commands

    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """What the replies to MULTI … EXEC say."""
        if _went_well(write.count, replies):
            return Verdict(Event.EXECUTED)
        outcome = Outcome.read(parse_replies(replies))
        if outcome.refusal is not None:
            return Verdict(Event.NOT_NOW, pause=outcome.refusal)
        if outcome.results is None:
            return Verdict(Event.CHANGED)
        refused = dict(errors_among(outcome.results))
        return Verdict(Event.ROWS_REFUSED if refused else Event.EXECUTED, refused=refused)

    def on_executed(self, write: Write) -> None:
        """The mark is there, and so are the rows."""
        for view, _, claims in _written_and_claimed(write.rest):
            view.made(write.mark_name, claims)
        for view, hashes in write.rest.met:
            view.met(write.mark_name, hashes)

    # -- rows may be written already ----------------------------------------------------------------------------

    def compare(self, server: Server, write: Write) -> Findings:
        """WATCH and read the ledger: which rows are missing? Raises LedgerError, EntryIdError, ServerError."""
        there = server.of(write.stream)
        tops = self._read(there, write)
        rest = self._rest(write)
        if not rest.shares:
            there.execute("UNWATCH")
            return Findings(Event.NONE_MISSING, rest)
        if rest.fresh.ids is not None:
            for stream, start, stop in rest.fresh.segments:
                top = read_stream_state(server, stream, tops[stream]).last
                place = first_refused(rest.fresh.ids.values.slice(start, stop - start), top)
                if place is not None:
                    raise id_refused(server, rest.fresh, start + place)
        return Findings(Event.ROWS_MISSING, rest, watched=there)

    def _read(self, server: Connection, write: Write) -> Mapping[bytes, Reply]:
        """WATCH the chunk's ledgers, and bring the views up to date. If its rows have ids, WATCH the streams, too, and
        return the XINFO STREAM of each: ids must rise above its top."""
        explicit = write.chunk.stream_names if write.chunk.ids is not None else []
        checks = _checks(write, *explicit)
        replies = server.pipeline([*checks, *[("XINFO", "STREAM", stream) for stream in explicit]])
        _, *answers = server.checked(checks, replies[: len(checks)])
        for share, head, length in zip(write.shares, answers[0::2], answers[1::2], strict=True):
            share.view.look_again(server, head, length)
        return dict(zip(explicit, replies[len(checks) :], strict=True))

    def _rest(self, write: Write) -> Rest:
        """Which rows are missing, by what is known of the ledger."""
        chunk = write.chunk
        wanted, claimed = np.zeros(len(chunk), np.bool_), np.zeros(len(chunk), np.bool_)
        met: list[tuple[LedgerView, Hashes]] = []
        for share in write.shares:
            view, hashes = share.view, share.hashes
            own = view.recovered.get(write.mark_name)
            if own is not None:  # this attempt has written these rows, but for those that were met already
                met.append((view, hashes[~Multiset.of(own).matching(hashes)]))
            elif not view.done:
                known = view.others.matching(hashes)
                met.append((view, hashes[known]))
                wanted[share.places] = ~known
                claimed[share.places.start + np.flatnonzero(~known)] = view.earlier.matching(hashes[~known])
        marked, claims = chunk.where(wanted), claimed[wanted]
        return Rest(marked.where(~claims), self._views.shares(marked), claims, met)

    def correct_mark(self, server: Server, write: Write) -> None:
        """The server has refused rows inside the transaction, which does not undo the mark: remove these rows from it.
        May be run again: a corrected mark stays as it is."""
        assert write.verdict is not None
        fresh = write.rest.fresh
        is_refused = np.zeros(len(fresh), np.bool_)
        is_refused[[place for place in write.verdict.refused if place < len(fresh)]] = True
        corrections: list[Command] = []
        before = 0
        for view, written, claims in _written_and_claimed(write.rest):
            refused = is_refused[before : before + len(written)]
            before += len(written)
            mark = server.execute("HGET", view.marks, write.mark_name)
            if refused.any() and mark == pack_mark(written, claims):
                corrections.append(("HSET", view.marks, write.mark_name, pack_mark(written[~refused], claims)))
                corrections.append(("DECRBY", view.keys.part("written"), int(refused.sum())))
        if corrections:
            transact(server, corrections)

    # -- durability ---------------------------------------------------------------------------------------------

    def missing_on(self, server: Server, kept: Sequence[Write]) -> list[Write]:
        """If the connection is a new one, the chunks that the server lacks: a replica that lagged behind may have
        become the master. Raises LedgerError if it lacks others, too: only another attempt can write those."""
        if self._server is None or server is self._server:
            return []
        views = [view for view in self._views.all() if view.mine and not view.done]
        names = server.execute_all([("HKEYS", view.marks) for view in views])
        known = {write.mark_name for write in kept}
        suspects = {view.stream for view in self._views.all() if not view.opened}  # the last look was interrupted
        for view, there in zip(views, names, strict=True):
            lost = view.mine.difference(there)
            if lost - known or (lost and not view.is_plain):
                raise refusals.vanished_meanwhile(self._views.batch, view.shown, len(lost))
            if lost:
                suspects.add(view.stream)
        found = self._read_afresh(server, [one for one in kept if not suspects.isdisjoint(one.chunk.stream_names)])
        self._server = server
        return found

    def _read_afresh(self, server: Server, writes: Sequence[Write]) -> list[Write]:
        """Read the ledgers of these chunks' streams as if for the first time. Return the chunks that are not there."""
        views = list({share.view.stream: share.view for write in writes for share in write.shares}.values())
        for view in views:
            view.begin_afresh()
        for some in server.together(views, lambda view: view.stream):
            open_views(server, self._views, some)
        for view in views:
            if not view.is_untouched and not view.done:
                # Others have written meanwhile: their rows and ours would have to be matched.
                raise refusals.vanished_meanwhile(self._views.batch, view.shown, len(writes))
        return [write for write in writes if any(write.mark_name not in share.view.mine for share in write.shares)]

    def touch(self, server: Server, kept: Sequence[Write]) -> list[bytes]:
        """Write something over each connection: WAIT covers only what its own connection has written."""
        unfinished = [view for view in self._views.all() if not view.done]
        for there, some in server.parts(unfinished, lambda view: view.stream):
            there.execute("INCRBY", some[0].keys.part("written"), 0)
        return [view.stream for view in self._views.all()]


def _checks(write: Write, *beside: bytes) -> list[Command]:
    """WATCH, and the commands whose answers `expected` foretells. beside: other keys to WATCH."""
    asked = [share.view.checks() for share in write.shares]
    watched = [key for keys, _ in asked for key in keys]
    return [("WATCH", *watched, *beside), *[check for _, checks in asked for check in checks]]


def _written_and_claimed(rest: Rest) -> Iterator[tuple[LedgerView, Hashes, Hashes]]:
    """(view, fingerprints of the rows that are written, of those that are claimed) of each stream."""
    for share in rest.shares:
        if rest.claimed is None:
            yield share.view, share.hashes, _NOTHING
        else:
            claimed = rest.claimed[share.places]
            yield share.view, share.hashes[~claimed], share.hashes[claimed]


def _went_well(commands: int, replies: bytes) -> bool:
    """Whether so many commands were queued, and EXEC has executed them without an error."""
    head = len(_OK) + len(_QUEUED) * commands
    return replies.startswith(b"*%d\r\n" % commands, head) and replies.find(b"\n-", head) < 0
