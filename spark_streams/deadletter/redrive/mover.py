"""Pages of dead letters on their way back: each dead letter is moved once, whatever dies when.

    rstream:redrive:{stream}   the state: which run it is, and how much it has moved

    begin   → WATCH state stream   GET state      is the state still ours?
            → XRANGE stream                       a page; what was moved before is gone from it
    move    → WATCH streams   XINFO streams       can each of them take the entries?
            → MULTI   XADD …   XDEL ids   SET state   EXEC

One transaction covers all streams on one server, and those in one slot of a cluster. Entries for streams in other slots
are appended before it, and noted there until it has deleted their dead letters (other_slots.py).

Live streams are written to all the time, and a transaction that WATCHes them fails each time. After a few failures a
page is tried with a WATCH of the state alone. An XADD that fails within EXEC does not hold up the other commands (FACTS
R14): such dead letters are put back. If their own stream refuses them, too, an error says so, and the log has their
fields. Those that another program deleted meanwhile are counted.

Each try of a transaction writes another state. So the state tells whether a transaction whose reply was lost was
executed, also if the server executes it late.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.deadletter.ids_left import watch_destinations, watch_with_room
from spark_streams.deadletter.redrive.other_slots import append, finish, forget, in_other_slots
from spark_streams.deadletter.redrive.page_plan import PagePlan, Part
from spark_streams.deadletter.redrive.redrive_lock import RedriveRun
from spark_streams.errors import IdsExhaustedError, ServerReplyError, WrongKeyTypeError
from spark_streams.model.keys import read_retry_stream
from spark_streams.wire.connection.connection import Argument, Reply, ReplyError
from spark_streams.wire.replies.multi_exec import execute_packed, transact_each
from spark_streams.wire.replies.replies import errors_among

WATCHED_TRIES = 3  # of a page with all its keys watched

Command = Sequence[Argument]

_log = logging.getLogger("spark_streams.deadletter")


@dataclass
class _Owed:
    """Dead letters that were deleted and whose entry was refused. serials: of the states that the server has when they
    are back, by one of the tries to put them back."""

    commands: Sequence[Command]
    why: ReplyError
    serials: set[int] = field(default_factory=set)


class Mover:
    """The transactions of one run. vanished: dead letters that were moved and that another program had deleted a moment
    before."""

    def __init__(self, run: RedriveRun) -> None:
        self.vanished = 0
        self._run = run
        # A query takes what waits for another try: what it has taken must not be moved, too.
        self._is_taken_from = read_retry_stream(run.stream) is not None
        self._tries = 0  # of this page
        self._sent: dict[int, PagePlan] = {}  # by serial: since the last transaction that is known to have succeeded
        self._owed: _Owed | None = None

    def begin(self) -> PagePlan | None:
        """Watch the state, and finish what an earlier process or connection has left. Return the plan of a page that
        turns out to be moved; else None, and a page may be read and moved.

        Raises RedriveTakenError, ServerError; then it may be called again.
        """
        run = self._run
        if self._owed is not None:
            self._put_back(self._owed)
        watched = [run.stream] if self._tries < WATCHED_TRIES or self._is_taken_from else []
        run.watch(*watched)
        moved = self._sent.get(run.state.serial)
        if run.state.to:
            finish(run)
            run.watch(*watched)
        if moved is not None:
            run.home.execute("UNWATCH")
            self._succeeded()
        return moved

    def move(self, plan: PagePlan) -> bool:
        """Move the dead letters of a page that was read since `begin`. Return False if something that is watched has
        changed: begin again. Raises as `begin` does, and ServerReplyError if a stream refuses entries."""
        run = self._run
        if not len(plan.rows):
            run.home.execute("UNWATCH")
            return True
        away = in_other_slots(run, plan.to)
        appended, refused = append(run, plan, away) if away else ([], [])
        if not self._close(plan, plan.part([to for to in plan.to if to not in away]), appended):
            self._tries += 1
            return False
        if away:
            forget(run)
        self._succeeded()
        if refused:
            raise ServerReplyError(
                f"{len(refused)} dead letters of stream {run.stream!r} at {run.session.address} could not "
                f"be moved and stay where they are: {refused[0].message}"
            )
        return True

    def _succeeded(self) -> None:
        self._sent.clear()
        self._tries = 0

    def _close(self, plan: PagePlan, here: Part, appended: Sequence[Part]) -> bool:
        """Append the entries that go to streams here; delete their dead letters, and those that were appended. Return
        False if something that is watched has changed."""
        run, home = self._run, self._run.home
        streams = [plan.to[code] for code in np.unique(plan.target[here.places]).tolist()]
        if self._tries < WATCHED_TRIES and not appended:
            watch_destinations(home, run.stream, streams, streams, len(here.ids))
        else:  # without WATCH, dead letters may have to be put back
            watch_destinations(home, run.stream, [], [*streams, run.stream], len(here.ids))
        places = np.concatenate([here.places, *[part.places for part in appended]])
        ids: list[bytes] = [*here.ids, *[entry for part in appended for entry in part.ids]]
        moved = int(np.count_nonzero(places < plan.moved))
        state = run.next(moved, len(places) - moved)
        self._sent[state.serial] = plan
        delete: Command = ("XDEL", run.stream, *ids)
        results = execute_packed(home, here.requests, len(here.ids), delete, state.store(run.stream))
        if results is None:
            return False
        run.state = state
        added, deleted = results[: len(here.ids)], results[len(here.ids)]
        self.vanished += len(ids) - deleted if isinstance(deleted, int) else 0
        failed = errors_among(added)
        if failed:
            rows = plan.rows[here.places[[place for place, _ in failed]]]
            fields = [[word for pair in pairs for word in pair] for pairs in plan.page.whole(rows).to_pylist()]
            self._owed = _Owed([("XADD", run.stream, "*", *words) for words in fields], failed[0][1])
            self._put_back(self._owed)
        return True

    def _put_back(self, owed: _Owed) -> None:
        """Append these to the dead letters again, each once. Raises ServerReplyError, also when that is done."""
        run, count = self._run, len(owed.commands)
        results: list[Reply] | None = None
        tries = 0
        while results is None:
            # While the stream is watched, no XADD that is executed is refused: a lost reply leaves no doubt.
            stored = run.stored(*([run.stream] if tries < WATCHED_TRIES else []))
            if stored is not None and stored.serial in owed.serials:  # the reply was lost
                run.state = stored
                break
            self._require_room(owed)
            if stored is None:  # another process has taken over meanwhile, and the state is its own
                results = transact_each(run.home, owed.commands)
            else:
                run.state = stored
                state = run.next(-count)
                owed.serials.add(state.serial)
                results = transact_each(run.home, [*owed.commands, state.store(run.stream)])
                run.state = stored if results is None else state
            tries += 1
        refused = errors_among((results or [])[:count])
        if refused:
            raise self._lost([owed.commands[place] for place, _ in refused], owed.why, refused[0][1])
        self._owed = None
        raise ServerReplyError(
            f"{count} dead letters of stream {run.stream!r} at {run.session.address} could not be moved and were put "
            f"back at its end: {owed.why}"
        )

    def _require_room(self, owed: _Owed) -> None:
        """Check that the stream of dead letters can take these again. Raises ServerReplyError."""
        try:
            watch_with_room(self._run.home, [], [self._run.stream], len(owed.commands))
        except (WrongKeyTypeError, IdsExhaustedError) as error:
            raise self._lost(owed.commands, owed.why, error) from None

    def _lost(self, letters: Sequence[Command], why: ReplyError, error: Exception) -> ServerReplyError:
        """Dead letters that no stream takes: their fields go to the log. Return the error."""
        run = self._run
        self._owed = None
        for command in letters:
            _log.error("a dead letter of stream %r that no stream takes has the fields %r", run.stream, command[3:])
        return ServerReplyError(
            f"{len(letters)} dead letters of stream {run.stream!r} at {run.session.address} could not be moved "
            f"({why}), and could not be put back ({error}). They are in no stream: the log has their fields. Restore "
            "the stream, and append them with XADD"
        )


class Rehearsal(Mover):
    """A dry run: it counts what would be moved, and sends nothing."""

    def begin(self) -> None:
        """There is nothing to finish."""

    def move(self, plan: PagePlan) -> bool:
        """Count the page."""
        self._run.state = self._run.state.after(0, plan.moved, plan.parked)
        return True
