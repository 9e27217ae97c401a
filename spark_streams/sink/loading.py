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
from dataclasses import dataclass

import hiredis
import numpy as np
import pyarrow as pa

from spark_streams.errors import LedgerError, RStreamError
from spark_streams.options import Options
from spark_streams.sink.chunks import Chunk, chunks
from spark_streams.sink.rows import error_of_row
from spark_streams.sink.trim import Trimmer, Trimming
from spark_streams.sink.write import wait_for_replicas
from spark_streams.wire.connection import Connection, Reply, ReplyError, pack
from spark_streams.wire.link import Link
from spark_streams.wire.retry import passes
from spark_streams.wire.slots import key_beside

_PER_SECOND = 10  # chunks, where a rate is set


@dataclass(frozen=True)
class Count:
    """How many rows of an input are in the stream. total: the sum of their fingerprints, mod 2^64."""

    rows: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: bytes | None) -> Count:
        """From the hash's value. Raises LedgerError."""
        try:
            return cls(*[int(word) for word in text.split()]) if text is not None else cls()
        except (ValueError, TypeError):
            raise LedgerError(
                f"the count of a load cannot be read ({text!r}): it was changed by something else"
            ) from None

    def and_(self, chunk: Chunk) -> Count:
        """With this chunk's rows."""
        assert chunk.hashes is not None
        with np.errstate(over="ignore"):
            return Count(self.rows + len(chunk), (self.total + int(chunk.hashes.sum(dtype=np.uint64))) % 2**64)

    def __str__(self) -> str:
        return f"{self.rows} {self.total}"


@dataclass(frozen=True)
class Load:
    """name: of the load; input: which of its inputs this is; rate: rows a second, None: as fast as it goes."""

    name: str
    input: str
    rate: int | None = None


def load_key(stream: str, name: str) -> bytes:
    """Where a load keeps its counts."""
    return key_beside(stream, "load", name)


def counts_of(server: Connection, stream: str, name: str) -> dict[str, Count]:
    """By input what is loaded; nothing where the stream has been deleted since: then it is loaded anew."""
    if not server.execute("EXISTS", stream):
        return {}
    flat = server.execute("HGETALL", load_key(stream, name))
    return {key.decode(): Count.parse(value) for key, value in zip(flat[0::2], flat[1::2], strict=True)}


def forget_counts(server: Connection, stream: str, name: str) -> None:
    """The next load of this name begins at the first row."""
    server.execute("DEL", load_key(stream, name))


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
            rows = _OrderedSender(link, trimmer, options["stream"], load).run(cut)
            if options["waitReplicas"] is not None:
                wait_for_replicas(link, options["waitReplicas"])
        finally:
            trimmer.close()
    return rows


class _OrderedSender:
    def __init__(self, link: Link, trimmer: Trimmer, stream: str, load: Load) -> None:
        self._link = link
        self._trimmer = trimmer
        self._stream = stream.encode()
        self._load = load
        self._key = load_key(stream, load.name)
        self._known = Count()  # as the server had it when last looked at
        self._watched = False
        self._began: float | None = None
        self._sent = 0

    def run(self, cut: Iterable[Chunk]) -> int:
        here = Count()
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

    def _hold_against(self, here: Count) -> None:
        if here.rows == self._known.rows and here != self._known:
            self._has_changed("has other rows there now")

    def _has_changed(self, how: str) -> None:
        raise LedgerError(
            f"{self._known.rows} rows of {self._load.input} were loaded into stream {self._stream.decode()!r} as "
            f"{self._load.name!r}, and the input {how}: give the load another name, or begin again"
        )

    def _write(self, chunk: Chunk, before: Count) -> bool:
        """The chunk and its count in one transaction; False where the count has moved meanwhile."""
        after = before.and_(chunk)
        self._keep_pace(len(chunk))
        while True:
            try:
                self._watch()
                if self._known != before:
                    if self._known.rows <= before.rows:
                        self._has_changed("is loaded by somebody who has begun again")
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
                refused = next((at for at, reply in enumerate(results) if isinstance(reply, ReplyError)), None)
                if refused is not None:
                    self._take_back(chunk, before, refused, str(results[refused]))
                self._known = after
                self._link.backoff.succeeded()
                self._trimmer.after([self._stream])
                return True

    def _transact(self, chunk: Chunk, after: Count) -> list[Reply]:
        """The replies to MULTI … EXEC."""
        pipe = self._link.pipe
        count = pack("HSET", self._key, self._load.input, str(after))
        last = b"".join([*self._trimmer.commands([self._stream]), count, pack("EXEC"), pipe.mark])
        pipe.send(pack("MULTI"), chunk.requests.slice(0, len(chunk)), last)
        reader = hiredis.Reader(replyError=ReplyError)
        reader.feed(pipe.take())
        replies: list[Reply] = []
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        return replies

    def _pass_or_raise(self, replies: list[Reply], chunk: Chunk) -> None:
        """EXEC was refused as a whole, and nothing is done: wait where that passes by itself."""
        at, first = next((at, reply) for at, reply in enumerate(replies) if isinstance(reply, ReplyError))
        if not passes(str(first)):
            raise error_of_row(self._link.server, chunk, min(max(at - 1, 0), len(chunk) - 1), str(first))
        self._link.close()
        self._link.wait(str(first))

    def _take_back(self, chunk: Chunk, before: Count, refused: int, text: str) -> None:
        """Rows from `refused` on were refused inside the transaction, which does not undo the count."""
        written = before.and_(chunk.slice(0, min(refused, len(chunk))))
        self._link.execute("HSET", self._key, self._load.input, str(written))
        if refused < len(chunk):
            raise error_of_row(self._link.server, chunk, refused, text)
        raise self._link.server.error_of(ReplyError(text), ("XTRIM", self._stream))

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
