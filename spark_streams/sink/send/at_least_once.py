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

from spark_streams.sink.encode.row_errors import first_unwritten, id_refused, refuses_own_id
from spark_streams.sink.send.chunk_states import Event
from spark_streams.sink.send.delivery import Delivery, Findings, Request, Rest, Verdict, Write
from spark_streams.wire.connection.retry import is_transient
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import find_errors, may_hold_errors, parse_replies
from spark_streams.wire.replies.reply_errors import is_id_form_unknown


class AtLeastOnce(Delivery):
    """Without a ledger."""

    def request(self, write: Write, extra: Sequence[bytes]) -> Request:
        """Return the rows' XADDs."""
        fresh = write.rest.fresh
        return Request(b"", fresh.requests.slice(0, len(fresh)), extra, len(fresh) + len(extra))

    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """Return the verdict of the replies to `request`."""
        if not may_hold_errors(replies):
            return Verdict(Event.EXECUTED)
        sent, pause = write.rest.fresh, None
        to_retry, doubtful = np.zeros(len(sent), np.bool_), np.zeros(len(sent), np.bool_)
        for place, refusal in find_errors(parse_replies(replies)):
            if place < len(sent) and refuses_own_id(sent, place, refusal) and not is_id_form_unknown(refusal):
                doubtful[place] = True
            elif not is_transient(refusal):
                return Verdict(Event.ROWS_REFUSED, refused={place: refusal})
            else:
                pause = refusal
                to_retry[place : place + 1] = True  # commands behind the rows, such as XTRIM, are sent each time
        event = Event.CHANGED if pause is None else Event.NOT_NOW
        return Verdict(event, pause=pause, to_retry=sent.filter(to_retry), doubtful=sent.filter(doubtful))

    def compare(self, server: Server, write: Write) -> Findings:
        """Require that rows that were refused for their IDs are in their stream. Raises EntryIdError."""
        verdict = write.verdict
        if verdict is None or verdict.to_retry is None or verdict.doubtful is None:  # the connection was lost
            return Findings(Event.ROWS_MISSING, write.rest)
        place = first_unwritten(server, verdict.doubtful)
        if place is not None:
            raise id_refused(server, verdict.doubtful, place)
        event = Event.NONE_MISSING if verdict.pause is None else Event.ROWS_MISSING
        return Findings(event, Rest(verdict.to_retry))

    def missing_on(self, server: Server, executed: Sequence[Write]) -> list[Write]:
        """Return the chunks that were sent over another connection: without a ledger, each may be missing."""
        return [
            write
            for write in executed
            if write.pipe is None or write.pipe.server is not server.connection_for(write.stream)
        ]

    def touch(self, server: Server, executed: Sequence[Write]) -> list[bytes]:
        """Do nothing: these connections have written the chunks themselves."""
        return [write.stream for write in executed]
