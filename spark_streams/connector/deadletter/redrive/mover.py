"""Move pages of dead letters. Each dead letter is moved once, whichever process dies at any time.

    begin    → WATCH state   GET state                       is the state still ours?
             → XRANGE stream                                 a page, without dead letters that were moved before
    append   → MULTI   SET state with `to`   EXEC
             → WATCH redriven to   XINFO to   GET state      can the streams take the entries?
             → MULTI   XADD to …   HSET redriven ids   EXEC  the entries, and a note on their dead letters
    delete   → WATCH state   GET state
             → MULTI   XDEL stream ids   SET state   EXEC
    forget   → MULTI   DEL redriven   EXEC, then MULTI   SET state without `to`   EXEC

Entries are appended before their dead letters are deleted, so a dead letter whose entry is refused stays where it is.
One transaction appends to all streams of a server, or of one slot in a cluster. The notes (unfinished_page.py) tell the
next process, or this one after a lost connection, which entries were appended.

Live streams are written to all the time, and a transaction that WATCHes them fails each time. After a few failures they
are not watched. Dead letters that another program deletes while their entries are appended are counted.

Each transaction on the state writes another state. So the state tells whether a transaction whose reply was lost was
executed, also if the server executes it late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.deadletter.ids_left import watch_destinations
from spark_streams.connector.deadletter.redrive.redrive_plan import Decision, PagePlan, RedrivePart
from spark_streams.connector.deadletter.redrive.redrive_state import RedriveRun, require_unchanged
from spark_streams.connector.deadletter.redrive.unfinished_page import WATCHED, by_slot, finish, forget, redriven_key
from spark_streams.connector.errors import RStreamError, ServerReplyError
from spark_streams.connector.wire.connection.connection import Argument, Connection
from spark_streams.connector.wire.replies.multi_exec import execute_packed, transact
from spark_streams.connector.wire.replies.replies import find_errors
from spark_streams.connector.wire.replies.xinfo import stream_states

WATCHED_TRIES = 3  # of a transaction with its destination streams watched


class Mover:
    """Transactions of one run. parking: stream of dead letters that were redriven too often; vanished: dead letters
    that were moved, but that another program had deleted just before."""

    def __init__(self, run: RedriveRun, parking: str) -> None:
        self.vanished = 0
        self._run, self._parking = run, parking
        self._sent: dict[int, PagePlan] = {}  # by serial: since the last transaction that is known to have succeeded

    def begin(self) -> PagePlan | None:
        """Watch the state, and finish the page that an earlier process or connection began. Return the plan of a page
        whose move turns out to be executed; otherwise None, and a page may be read and moved.

        Raises RedriveTakenError, ServerError; then it may be called again.
        """
        run = self._run
        run.watch()
        moved = self._sent.get(run.state.serial)
        if run.state.to:
            finish(run, self._parking)
            run.watch()
        if moved is not None:
            run.home.execute("UNWATCH")
            self._sent.clear()
        return moved

    def move(self, plan: PagePlan) -> None:
        """Move the dead letters of a page that was read since `begin`. Raises as `begin` does, and ServerReplyError if
        a stream refuses entries: their dead letters stay."""
        run = self._run
        if not len(plan.rows):
            run.home.execute("UNWATCH")
            return
        destinations = [plan.to[code] for code in np.unique(plan.target).tolist()]
        run.write(replace(run.next(), to=tuple(map(text, destinations))))
        refused: list[RStreamError] = []
        places = list[int]()
        for streams in by_slot(run, destinations):
            part, errors = self._append(plan, streams)
            places += part.places.tolist()
            refused += errors
        self._delete(plan, places)
        forget(run)
        self._sent.clear()
        if refused:
            raise ServerReplyError(
                f"{len(refused)} dead letters of stream {run.stream!r} at {run.session.address} could not be moved, "
                f"and stay in it: {refused[0].message}"
            )

    def _append(self, plan: PagePlan, streams: Sequence[bytes]) -> tuple[RedrivePart, list[RStreamError]]:
        """Append the entries for these streams, and note their dead letters there. Return the part that was appended,
        and the errors of refused entries."""
        run, part = self._run, plan.part(streams)
        node = run.session.connection_for(streams[0])
        keys = [redriven_key(text(to), run.stream) for to in streams]
        of_stream: dict[bytes, list[bytes]] = {to: [] for to in streams}
        for place, entry in zip(part.places.tolist(), part.ids, strict=True):
            of_stream[plan.to[plan.target[place]]].append(entry)
        most = max(map(len, of_stream.values()))
        results = None
        for is_watched in [*[True] * WATCHED_TRIES, False]:
            watch_destinations(node, run.stream, [*keys, *streams] if is_watched else keys, streams, most)
            position = dict.fromkeys(streams, WATCHED) if is_watched else _last_ids(node, streams)
            run.watch()  # behind the WATCH of `redriven`
            notes: list[Sequence[Argument]] = []
            for key, (to, ids) in zip(keys, of_stream.items(), strict=True):
                notes.append(("HSET", key, *[word for entry in ids for word in (entry, position[to])]))
            results = execute_packed(node, part.requests, len(part.ids), *notes)
            if results is not None:
                break
        refused = dict(find_errors(require_unchanged(run, results)[: len(part.ids)]))
        if not refused:
            return part, []
        target = {place: plan.to[plan.target[part.places[place]]] for place in refused}
        node.execute_all([("HDEL", redriven_key(text(to), run.stream), part.ids[at]) for at, to in target.items()])
        return part.without(refused), [node.error_of(why, ("XADD", target[at])) for at, why in refused.items()]

    def _delete(self, plan: PagePlan, places: Sequence[int]) -> None:
        """Delete the dead letters whose entries were appended. places: of the plan's rows."""
        if not places:  # all of them were refused
            return
        run = self._run
        run.watch()
        moved = int(np.count_nonzero(np.asarray(places) < plan.count(Decision.MOVE)))
        state = run.next(moved, len(places) - moved)
        self._sent[state.serial] = plan
        ids = [plan.ids[place] for place in places]
        replies = transact(run.home, [("XDEL", run.stream, *ids), state.store(run.stream)])
        self.vanished += len(ids) - require_unchanged(run, replies)[0]
        run.state = state


def _last_ids(node: Connection, streams: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the last ID of each stream. Raises ServerReplyError."""
    return {to: bytes(state.last) for to, state in stream_states(node, streams).items()}


class Rehearsal(Mover):
    """A dry run: it counts what would be moved, and sends nothing."""

    def begin(self) -> None:
        """Do nothing: a dry run leaves no state."""

    def move(self, plan: PagePlan) -> None:
        """Count the page."""
        self._run.state = self._run.state.after(0, plan.count(Decision.MOVE), plan.count(Decision.PARK))
