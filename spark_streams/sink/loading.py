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

from spark_streams.errors import LedgerError, RStreamError, ServerUnreachableError
from spark_streams.options import Options
from spark_streams.sink.chunks import Chunk, chunks
from spark_streams.sink.counts import Count, Load, load_key
from spark_streams.sink.limits import Limits
from spark_streams.sink.replicas import wait_for_replicas
from spark_streams.sink.rows import error_of_row
from spark_streams.sink.trim import Trimmer, Trimming
from spark_streams.wire.connection import Connection, Reply, ReplyError, pack
from spark_streams.wire.link import Link
from spark_streams.wire.replies import errors_among, parse_replies
from spark_streams.wire.retry import is_transient

_PER_SECOND = 10  # chunks, where a rate is set


def append_in_order(batches: Iterable[pa.RecordBatch], options: Options, load: Load) -> int:
    """Append the rows that are not counted yet, in order; how many the input has.

    Raises LedgerError where the counted rows are not the input's first ones, SchemaError for a row that cannot be an
    entry, RetriesExhaustedError, ServerReplyError (or kin), ReplicationError.
    """
    size = options["chunkSize"] if load.rate is None else min(options["chunkSize"], -(-load.rate // _PER_SECOND))
    with Link(options.address) as link:
        trimmer = Trimmer(link, Trimming.of(options))
        try:
            cut = chunks(batches, options["stream"], options["nulls"], size, fingerprints=True)
            sender = _OrderedSender(link, trimmer, options["stream"], load)
            rows = sender.run(sender.limits.fitting(cut))
            if options["waitReplicas"] is not None:
                sender.cover(options["waitReplicas"])
        finally:
            trimmer.close()
    return rows


class _OrderedSender:
    def __init__(self, link: Link, trimmer: Trimmer, stream: str, load: Load) -> None:
        self._link = link
        self._trimmer = trimmer
        self._stream = stream.encode()
        self._load = load
        self.limits = Limits(link.address)
        self._key = load_key(stream, load.name)
        self._known = Count()  # as the server had it when last looked at
        self._watched = False
        self._wrote_on: Connection | None = None
        self._began: float | None = None
        self._sent = 0

    def run(self, cut: Iterable[Chunk]) -> int:
        here = Count()
        if self._link.execute("TYPE", self._stream) not in (b"none", b"stream"):
            # Within a transaction it would be refused, and counted.
            raise self._link.server.not_a_stream(self._stream, "XADD")
        self._look()
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
            self._has_changed(f"has only {here.rows} rows")
        return here.rows

    def cover(self, replicas: int) -> None:
        """Until so many replicas have all rows. Raises LedgerError where the server that answers now has not, and
        ReplicationError."""
        while self._known.rows:
            try:
                server = self._link.server
                if server is not self._wrote_on:
                    found = Count.parse(server.execute("HGET", self._key, self._load.input))
                    if found.rows < self._known.rows:
                        raise self._has_fallen(found)
                    # So that this connection has written something after the rows.
                    server.execute("HSET", self._key, self._load.input, str(found))
                    self._wrote_on = server
                wait_for_replicas(server, replicas)
                return
            except RStreamError as error:
                self._link.again(error)

    def _has_fallen(self, found: Count) -> LedgerError:
        return LedgerError(
            f"{self._known.rows} rows of {self._load.input} were loaded into stream {self._stream.decode()!r} as "
            f"{self._load.name!r}, and the server counts {found.rows}: it has lost the rest (a replica that lagged "
            "behind became the master), or somebody has begun the load again: load it again, it goes on from there"
        )

    def _hold_against(self, here: Count) -> None:
        if here.rows == self._known.rows and here != self._known:
            self._has_changed("has other rows there now")

    def _has_changed(self, how: str) -> None:
        raise LedgerError(
            f"{self._known.rows} rows of {self._load.input} were loaded into stream {self._stream.decode()!r} as "
            f"{self._load.name!r}, and the input {how}: put it back as it was; under another name, or begun again, "
            "all of it is loaded, and these rows a second time"
        )

    def _write(self, chunk: Chunk, before: Count) -> bool:
        """The chunk and its count in one transaction; False where the count has moved meanwhile."""
        after = before.and_(chunk)
        self._keep_pace(len(chunk))
        while True:
            try:
                self._watch()
                if self._known != before:
                    if self._known.rows < before.rows:
                        found, self._known = self._known, before
                        raise self._has_fallen(found)
                    if self._known.rows == before.rows:
                        self._has_changed("has other rows there now")
                    return False
                replies = self._transact(chunk, after)
            except RStreamError as error:
                self._watched = False
                self._link.again(error)
                continue
            results = replies[-1]
            self._watched = False
            if isinstance(results, ReplyError):
                self._pass_or_raise(replies, chunk)
            elif results is not None:
                refused = errors_among(results)
                if refused:
                    self._take_back(chunk, before, *refused[0])
                self._known = after
                self._wrote_on = self._link.server
                self._link.backoff.succeeded()
                self._trimmer.after([self._stream])
                return True

    def _transact(self, chunk: Chunk, after: Count) -> list[Reply]:
        """The replies to MULTI … EXEC."""
        pipe = self._link.pipe
        count = pack("HSET", self._key, self._load.input, str(after))
        last = b"".join([*self._trimmer.commands([self._stream]), count, pack("EXEC"), pipe.mark])
        try:
            pipe.send(pack("MULTI"), chunk.requests.slice(0, len(chunk)), last)
            return parse_replies(pipe.take())
        except ServerUnreachableError:
            self.limits.lost(chunk)
            raise

    def _pass_or_raise(self, replies: list[Reply], chunk: Chunk) -> None:
        """EXEC was refused as a whole, and nothing is done: wait where that passes by itself."""
        at, first = errors_among(replies)[0]
        if not is_transient(first):
            raise error_of_row(self._link.server, chunk, min(max(at - 1, 0), len(chunk) - 1), first)
        self._link.close()
        self._link.wait(str(first))

    def _take_back(self, chunk: Chunk, before: Count, refused: int, why: ReplyError) -> None:
        """Rows from `refused` on were refused inside the transaction, which does not undo the count."""
        written = before.and_(chunk.slice(0, min(refused, len(chunk))))
        self._link.execute("HSET", self._key, self._load.input, str(written))
        if refused < len(chunk):
            raise error_of_row(self._link.server, chunk, refused, why)
        raise self._link.server.error_of(why, ("XTRIM", self._stream))

    def _look(self) -> None:
        while True:
            try:
                self._watch()
                return
            except RStreamError as error:
                self._watched = False
                self._link.again(error)

    def _watch(self) -> None:
        """WATCH the counts and read ours, unless that is done."""
        if not self._watched:
            replies = self._link.server.pipeline([("WATCH", self._key), ("HGET", self._key, self._load.input)])
            for reply in replies:
                if isinstance(reply, ReplyError):
                    raise self._link.server.error_of(reply, ("HGET", self._key, self._load.input))
            self._known = Count.parse(replies[1])
            self._watched = True

    def _keep_pace(self, rows: int) -> None:
        """Wait until so many rows may go out."""
        if self._load.rate is None:
            return
        if self._began is None:
            self._began = time.monotonic()
        due = self._began + self._sent / self._load.rate
        self._sent += rows
        time.sleep(max(0.0, due - time.monotonic()))
