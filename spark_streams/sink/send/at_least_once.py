"""At least once: plain pipelined XADDs, and no ledger.

What the server refuses for a reason that may pass (wire.connection.retry) is sent again by itself, after all that was
under way. A chunk whose connection was lost is sent again whole, because nobody knows how much of it arrived. Both may
change the order of entries, the second may write some twice.

A row with an id of its own that is refused because the stream has come further is looked for there: a batch that is
replayed finds what it has written before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_streams.sink.encode.row_errors import first_unwritten, id_refused, refuses_own_id
from spark_streams.sink.send.chunk_states import Event
from spark_streams.sink.send.delivery import Delivery, Findings, Request, Rest, Verdict, Write
from spark_streams.wire.connection.retry import is_transient
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.replies import errors_among, may_hold_errors, parse_replies
from spark_streams.wire.replies.reply_errors import is_id_form_unknown


class AtLeastOnce(Delivery):
    """Without a ledger."""

    def request(self, write: Write, beside: Sequence[bytes]) -> Request:
        """The rows' XADDs."""
        fresh = write.rest.fresh
        return Request(b"", fresh.requests.slice(0, len(fresh)), beside, len(fresh) + len(beside))

    def verdict(self, write: Write, replies: bytes) -> Verdict:
        """What the replies to `request` say."""
        if not may_hold_errors(replies):
            return Verdict(Event.EXECUTED)
        sent, pause = write.rest.fresh, None
        again, doubtful = np.zeros(len(sent), np.bool_), np.zeros(len(sent), np.bool_)
        for place, refusal in errors_among(parse_replies(replies)):
            if place < len(sent) and refuses_own_id(sent, place, refusal) and not is_id_form_unknown(refusal):
                doubtful[place] = True
            elif not is_transient(refusal):
                return Verdict(Event.ROWS_REFUSED, refused={place: refusal})
            else:
                pause = refusal
                again[place : place + 1] = True  # none behind the rows: an XTRIM goes along each time
        event = Event.CHANGED if pause is None else Event.NOT_NOW
        return Verdict(event, pause=pause, again=sent.where(again), doubtful=sent.where(doubtful))

    def compare(self, server: Server, write: Write) -> Findings:
        """Rows that were refused for their ids must be in their stream already. Raises EntryIdError."""
        verdict = write.verdict
        if verdict is None or verdict.again is None or verdict.doubtful is None:  # the connection was lost
            return Findings(Event.ROWS_MISSING, write.rest)
        place = first_unwritten(server, verdict.doubtful)
        if place is not None:
            raise id_refused(server, verdict.doubtful, place)
        event = Event.NONE_MISSING if verdict.pause is None else Event.ROWS_MISSING
        return Findings(event, Rest(verdict.again))

    def missing_on(self, server: Server, kept: Sequence[Write]) -> list[Write]:
        """Without a ledger, a chunk may be missing if it was sent over another connection than this one."""
        return [write for write in kept if write.pipe is None or write.pipe.server is not server.of(write.stream)]

    def touch(self, server: Server, kept: Sequence[Write]) -> list[bytes]:
        """These connections have written the chunks themselves."""
        return [write.stream for write in kept]
