"""Append entries to a stream under their IDs, and continue after the last of them.

    XINFO STREAM            the target's last-generated ID: entries up to it are there, entries above it are missing
    MULTI   XADD …   EXEC   a page of entries: all of them are written, or none
    connection lost         read the ID again: it says which case it was

IDs ascend, so the server refuses an entry that it has, and no state beside the target is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.streams import execute_packed, pack, require_plain
from spark_streams.connector.errors import CopyTargetError, InvalidOptionError
from spark_streams.connector.keys import is_product_key
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_id_refusal, is_no_such_key
from spark_streams.connector.wire.replies.xinfo import ends_in, read_stream_state
from spark_streams.connector.wire.session import Session
from spark_streams.operations.transfer.entries import Entry


@dataclass(frozen=True)
class TargetState:
    """State of the target stream. last: its last-generated ID; entry: its last entry, None if it has none."""

    last: StreamId
    length: int = 0
    exists: bool = False
    entry: Entry | None = None

    def holds(self, entry: Entry, same_fields: bool) -> bool:
        """Whether this is the last entry, and no later ID was generated. same_fields: with these bytes."""
        own = self.entry
        return own is not None and own.id == self.last == entry.id and (not same_fields or own.fields == entry.fields)


def require_writable(server: Server, stream: str) -> None:
    """Raise InvalidOptionError for a key of the product, ShardsError for a sharded stream."""
    if is_product_key(stream):
        raise InvalidOptionError(f"{stream!r} is a key of spark-streams; name another target")
    require_plain(server, stream)


def fetch_target(server: Server, stream: str) -> TargetState:
    """Return the state of the target. Raises WrongKeyTypeError, ServerReplyError."""
    [reply] = server.execute_all([("XINFO", "STREAM", stream)], is_no_such_key)
    state = read_stream_state(server, stream, reply)
    ends = ends_in(reply) if state.length else None
    return TargetState(state.last, state.length, state.exists, None if ends is None else Entry(*ends.last))


class Appender:
    """Appends pages of entries with ascending IDs to a stream. last: the target's last ID."""

    def __init__(self, session: Session, stream: str, last: StreamId) -> None:
        self._session, self._stream = session, stream
        self._last = last
        self._in_doubt = False  # whether a reply was lost

    def append(self, entries: Sequence[Entry]) -> None:
        """Append the entries. Raises CopyTargetError if another client writes to the stream, ServerError."""
        self._session.renew_login()
        self._session.run(lambda server: self._append(server, entries))
        self._last = entries[-1].id

    def _append(self, server: Server, entries: Sequence[Entry]) -> None:
        if self._in_doubt:
            last = fetch_target(server, self._stream).last
            if last < self._last:
                raise CopyTargetError(
                    f"stream {self._stream!r} at {server.address} has lost the entries after {last}: its server was "
                    "replaced or restarted without them; run the same command again, it continues after that entry"
                )
            entries = [entry for entry in entries if entry.id > last]
        self._in_doubt = True
        if entries:
            requests = b"".join([pack("XADD", self._stream, bytes(entry.id), *entry.fields) for entry in entries])
            replies = execute_packed(server.connection_for(self._stream), requests, len(entries)) or ()
            for entry, reply in zip(entries, replies, strict=True):
                if isinstance(reply, ReplyError):
                    self._require_written(server, entry, reply)
        self._in_doubt = False

    def _require_written(self, server: Server, entry: Entry, refusal: ReplyError) -> None:
        """Raise the named error of a refused entry, unless the stream holds this entry: a request whose connection
        broke was executed later."""
        if not is_id_refusal(refusal):
            raise server.error_of(refusal, ("XADD", self._stream, bytes(entry.id)))
        entry_id = bytes(entry.id)
        if server.execute("XRANGE", self._stream, entry_id, entry_id) != [[entry_id, list(entry.fields)]]:
            raise CopyTargetError(
                f"stream {self._stream!r} at {server.address} refuses entry {entry.id}, because another client adds "
                "entries to it; stop that client, or name another target"
            )
