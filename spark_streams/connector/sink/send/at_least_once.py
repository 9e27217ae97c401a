"""At least once: plain pipelined XADDs, and no ledger.

Rows that the server refuses for a temporary reason (wire.connection.retry) are sent again alone, after all outstanding
replies. If the connection is lost, the complete chunk is sent again, because the task cannot know how much of it
arrived. Both may change the order of entries; the second may write some entries twice.

If the server refuses a row because its explicit ID is too low, the task looks for the row in the stream: a batch that
is replayed finds the rows that it has written before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_streams.connector.errors import ReplicationError
from spark_streams.connector.sink.encode.row_errors import first_unwritten, id_refused, refuses_own_id
from spark_streams.connector.sink.send.chunk_states import Event
from spark_streams.connector.sink.send.delivery import Comparison, Delivery, ReplyResult, Request, UnwrittenRows, Write
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.connection.retry import is_transient
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import find_errors, is_id_form_unknown, may_hold_errors, parse_replies


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
