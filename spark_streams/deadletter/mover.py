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
R14): such dead letters are put back. Those that another program deleted meanwhile are counted.

Each try of a transaction writes another state. So the state tells whether a transaction whose reply was lost was
executed, also if the server executes it late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.ids_left import questions, require_streams
from spark_streams.deadletter.other_slots import announce, append, finish, forget
from spark_streams.deadletter.page_plan import PagePlan, Part
from spark_streams.deadletter.redrive_run import Command, RedriveRun
from spark_streams.errors import RStreamError, ServerReplyError
from spark_streams.keys import read_retry_stream
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.multi_exec import execute_packed, transact
from spark_streams.wire.replies import errors_among

WATCHED_TRIES = 3  # of a page with all its keys watched


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
        if self._owed is not None:
            self._put_back(self._owed)
        while True:
            watch = self._tries < WATCHED_TRIES or self._is_taken_from
            self._run.watch(*([self._run.stream] if watch else []))
            moved = self._sent.get(self._run.state.serial)
            if not self._run.state.to:
                break
            finish(self._run)
            if moved is not None:
                break
        if moved is not None:
            self._run.home.execute("UNWATCH")
            self._succeeded()
        return moved

    def move(self, plan: PagePlan) -> bool:
        """Move the dead letters of a page that was read since `begin`. Return False if something that is watched has
        changed: begin again. Raises as `begin` does, and ServerReplyError if a stream refuses entries."""
        if not len(plan.rows):
            self._run.home.execute("UNWATCH")
            return True
        away = self._away(plan)
        refused: list[RStreamError] = []
        appended: list[Part] = []
        if away:
            announce(self._run, away)
            for to in away:
                part, errors = append(self._run, to, plan.part([to]))
                appended.append(part)
                refused += errors
            self._run.watch()
        here = plan.part([to for to in plan.to if to not in away])
        if not self._close(plan, here, appended):
            self._tries += 1
            return False
        if away:
            forget(self._run)
        self._succeeded()
        if refused:
            raise ServerReplyError(
                f"{len(refused)} dead letters of stream {self._run.stream!r} at {self._run.session.address} could not "
                f"be moved and stay where they are: {refused[0].message}"
            )
        return True

    def _succeeded(self) -> None:
        self._sent.clear()
        self._tries = 0

    def _away(self, plan: PagePlan) -> list[bytes]:
        """Return the streams that are in other slots than the dead letters."""
        slots = self._run.session.get().together([raw(self._run.stream), *plan.to], lambda stream: stream)
        return [to for slot in slots[1:] for to in slot]

    def _close(self, plan: PagePlan, here: Part, appended: Sequence[Part]) -> bool:
        """Append the entries that go to streams here; delete their dead letters, and those that were appended. Return
        False if something that is watched has changed."""
        run, home = self._run, self._run.home
        watch = self._tries < WATCHED_TRIES and not appended
        streams = [plan.to[code] for code in np.unique(plan.target[here.places]).tolist()]
        # Without WATCH, dead letters may have to be put back.
        needed: list[str | bytes] = [*streams, *([] if watch else [run.stream])]
        asked = [("WATCH", *streams)] if watch and streams else []
        replies = home.pipeline([*asked, *questions(needed), ("MULTI",)])
        try:
            for command, reply in zip(asked, replies, strict=False):
                if isinstance(reply, ReplyError):
                    raise home.error_of(reply, command)
            require_streams(home, run.stream, needed, replies[len(asked) : -1], len(here.ids))
        except Exception:
            home.execute("DISCARD")
            raise
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
        """Append these to the dead letters again, each once. Raises ServerReplyError when that is done."""
        run = self._run
        while True:
            stored = run.stored()
            if stored is not None and stored.serial in owed.serials:  # the reply was lost
                run.state = stored
                break
            if stored is None:  # another process has taken over meanwhile, and the state is its own
                if transact(run.home, owed.commands) is not None:
                    break
                continue
            state = run.next(-len(owed.commands))
            owed.serials.add(state.serial)
            if transact(run.home, [*owed.commands, state.store(run.stream)]) is not None:
                run.state = state
                break
        self._owed = None
        raise ServerReplyError(
            f"{len(owed.commands)} dead letters of stream {run.stream!r} at {run.session.address} could not be moved "
            f"and were put back at its end: {owed.why}"
        )
