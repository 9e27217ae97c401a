"""A load goes on where it was: rows that always come in the same order, and how many of them are in the stream.

    rstream:load:{orders}:<name>    a hash: for each input (a file) `<rows> <sum of their fingerprints, mod 2^64>`

Every chunk is one transaction: its XADDs and the new count, WATCHing the hash. Whoever begins again passes over the
rows that are counted, and holds them against the sum: an input that has changed is an error, one that has grown is
loaded from there. A retry, a twin, another process that loads the same: what one of them has written the others pass
over. The count is all that is kept, however long the input is.

(The ledger knows rows in any order, and pays with eight bytes for each: see ledger.py.)
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pyarrow as pa

from spark_streams.errors import LedgerError, ServerUnreachableError
from spark_streams.options import Options
from spark_streams.sink.chunks import Chunk, chunks
from spark_streams.sink.counts import Count, Load, load_key
from spark_streams.sink.destination import Destination
from spark_streams.sink.limits import Limits
from spark_streams.sink.replicas import wait_for_replicas
from spark_streams.sink.rows import error_of_row
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import Reply, ReplyError, pack
from spark_streams.wire.multi_exec import Outcome
from spark_streams.wire.replies import errors_among, parse_replies
from spark_streams.wire.retry import is_transient
from spark_streams.wire.server import Server
from spark_streams.wire.session import Session

_PER_SECOND = 10  # chunks, where a rate is set


def append_in_order(batches: Iterable[pa.RecordBatch], options: Options, load: Load) -> int:
    """Append the rows that are not counted yet, in order; how many the input has.

    Raises LedgerError where the counted rows are not the input's first ones, SchemaError for a row that cannot be an
    entry, RetriesExhaustedError, ServerReplyError (or kin), ReplicationError.
    """
    size = options["chunkSize"] if load.rate is None else min(options["chunkSize"], -(-load.rate // _PER_SECOND))
    with Session(options.address, is_known=True) as session:  # the driver has been connected
        trimmer = Trimmer.of(session, options)
        try:
            cut = chunks(batches, Destination(options["stream"]), options["nulls"], size, fingerprints=True)
            sender = _OrderedSender(session, trimmer, options["stream"], load)
            rows = sender.run(sender.limits.fitting(cut))
            if options["waitReplicas"] is not None:
                sender.cover(options["waitReplicas"])
        finally:
            trimmer.close()
    return rows


class _OrderedSender:
    def __init__(self, session: Session, trimmer: Trimmer, stream: str, load: Load) -> None:
        self._session = session
        self._trimmer = trimmer
        self._stream = stream.encode()
        self._load = load
        self.limits = Limits(session.address)
        self._key = load_key(stream, load.name)
        self._known = Count()  # as the server had it when last looked at
        self._watched_on: Server | None = None  # where the counts are watched, and `_known` was read
        self._wrote_on: Server | None = None
        self._began: float | None = None
        self._sent = 0

    def run(self, cut: Iterable[Chunk]) -> int:
        here = Count()
        if self._session.execute("TYPE", self._stream) not in (b"none", b"stream"):
            # Within a transaction it would be refused, and counted.
            raise self._session.get().not_a_stream(self._stream, "XADD")
        self._session.run(self._watch)
        for whole in cut:
            chunk = whole
            while len(chunk):
                if here.rows < self._known.rows:
                    counted = chunk.slice(0, min(len(chunk), self._known.rows - here.rows))
                    chunk = chunk.slice(len(counted), len(chunk))
                    here = here.and_(counted)
                    self._hold_against(here)
                elif self._write(chunk, here):
                    here = here.and_(chunk)
                    break
        if here.rows < self._known.rows:
            raise self._has_changed(f"has only {here.rows} rows")
        return here.rows

    def cover(self, replicas: int) -> None:
        """Until so many replicas have all rows. Raises LedgerError where the server that answers now has not, and
        ReplicationError."""
        if self._known.rows:
            self._session.run(lambda server: self._cover(server, replicas))

    def _cover(self, server: Server, replicas: int) -> None:
        if server is not self._wrote_on:
            count = Count.parse(server.execute("HGET", self._key, self._load.input))
            if count.rows < self._known.rows:
                raise self._has_fallen(count)
            # So that this connection has written something after the rows.
            server.execute("HSET", self._key, self._load.input, str(count))
            self._wrote_on = server
        wait_for_replicas(server, replicas, [self._stream])

    def _has_fallen(self, count: Count) -> LedgerError:
        return LedgerError(
            f"{self._known.rows} rows of {self._load.input} were loaded into stream {self._stream.decode()!r} as "
            f"{self._load.name!r}, and the server counts {count.rows}: it has lost the rest (a replica that lagged "
            "behind became the master), or somebody has begun the load again: load it again, it goes on from there"
        )

    def _hold_against(self, here: Count) -> None:
        if here.rows == self._known.rows and here != self._known:
            raise self._has_changed("has other rows there now")

    def _has_changed(self, how: str) -> LedgerError:
        return LedgerError(
            f"{self._known.rows} rows of {self._load.input} were loaded into stream {self._stream.decode()!r} as "
            f"{self._load.name!r}, and the input {how}: put it back as it was; under another name, or begun again, "
            "all of it is loaded, and these rows a second time"
        )

    def _write(self, chunk: Chunk, before: Count) -> bool:
        """The chunk and its count in one transaction; False where the count has moved meanwhile."""
        self._keep_pace(len(chunk))
        after = before.and_(chunk)
        results: list[Reply] | None = None
        while results is None:
            results = self._session.run_part(lambda server: self._try(server, chunk, before, after))
            if self._known.rows > before.rows:
                return False
        refused = errors_among(results)
        if refused:
            self._take_back(chunk, before, *refused[0])
        self._known = after
        self._session.backoff.succeeded()
        self._trimmer.after(chunk)
        return True

    def _try(self, server: Server, chunk: Chunk, before: Count, after: Count) -> list[Reply] | None:
        """The results of one transaction; None where the count stands further already, or was touched since it was
        looked at. Raises a ReplyError that is transient, LedgerError, the named error of a row."""
        self._watch(server)
        if self._known.rows < before.rows:
            count, self._known = self._known, before
            raise self._has_fallen(count)
        if self._known.rows > before.rows:
            return None
        if self._known != before:
            raise self._has_changed("has other rows there now")
        self._watched_on = None  # whatever EXEC answers, it ends the WATCH
        outcome = Outcome.read(self._transact(chunk, after))
        if outcome.refusal is None:
            self._wrote_on = server
            return outcome.results
        if is_transient(outcome.refusal):
            raise outcome.refusal
        raise error_of_row(server, chunk, min(outcome.place, len(chunk) - 1), outcome.refusal)

    def _transact(self, chunk: Chunk, after: Count) -> list[Reply]:
        """The replies to MULTI … EXEC."""
        pipe = self._session.pipe_of(self._stream)
        count = pack("HSET", self._key, self._load.input, str(after))
        last = b"".join([*self._trimmer.commands(chunk), count, pack("EXEC"), pipe.mark])
        try:
            pipe.send(pack("MULTI"), chunk.requests.slice(0, len(chunk)), last)
            return parse_replies(pipe.take())
        except ServerUnreachableError:
            self.limits.lost(chunk)
            raise

    def _take_back(self, chunk: Chunk, before: Count, refused: int, why: ReplyError) -> None:
        """Rows from `refused` on were refused inside the transaction, which does not undo the count."""
        written = before.and_(chunk.slice(0, min(refused, len(chunk))))
        self._session.execute("HSET", self._key, self._load.input, str(written))
        if refused < len(chunk):
            raise error_of_row(self._session.get(), chunk, refused, why)
        raise self._session.get().error_of(why, self._trimmer.words(self._stream))

    def _watch(self, server: Server) -> None:
        """WATCH the counts and read ours, unless that is done."""
        if self._watched_on is server:
            return
        _, count = server.of(self._stream).execute_all([("WATCH", self._key), ("HGET", self._key, self._load.input)])
        self._known = Count.parse(count)
        self._watched_on = server

    def _keep_pace(self, rows: int) -> None:
        """Wait until so many rows may go out."""
        if self._load.rate is None:
            return
        if self._began is None:
            self._began = time.monotonic()
        due = self._began + self._sent / self._load.rate
        self._sent += rows
        time.sleep(max(0.0, due - time.monotonic()))
