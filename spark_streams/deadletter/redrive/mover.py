"""Move pages of dead letters. Each dead letter is moved once, whichever process dies at any time.

    rstream:redrive:{stream}   the state: the run, and how many dead letters it has moved

    begin   → WATCH state stream   GET state      is the state still ours?
            → XRANGE stream                       a page, without dead letters that were moved before
    move    → WATCH streams   XINFO streams       can each of them take the entries?
            → MULTI   XADD …   XDEL ids   SET state   EXEC

One transaction covers all streams on one server, and those in one slot of a cluster. Entries for streams in other slots
are appended before it, and noted there until it has deleted their dead letters (other_slots.py).

Live streams are written to all the time, and a transaction that WATCHes them fails each time. After a few failures all
entries of a page are appended and noted first, as for other slots: an XADD that fails within EXEC does not hold up the
other commands (FACTS R14), so a transaction that does not WATCH its destinations deletes no dead letter of its own
entries. Entries that wait for a retry must be appended and deleted in one transaction, because a query takes them.

WATCH notices neither XSETID nor revoked rights. Dead letters that are refused for that are put back. If their own
stream refuses them, too, an error says so, and the log has their fields. Those that another program deleted meanwhile
are counted.

Each try of a transaction writes another state. So the state tells whether a transaction whose reply was lost was
executed, also if the server executes it late.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.deadletter.ids_left import watch_and_check_ids, watch_destinations
from spark_streams.deadletter.redrive.other_slots import WATCHED_TRIES, append, finish, forget, in_other_slots
from spark_streams.deadletter.redrive.page_plan import PagePlan, Part
from spark_streams.deadletter.redrive.redrive_lock import RedriveRun
from spark_streams.errors import IdsExhaustedError, ServerReplyError, WrongKeyTypeError
from spark_streams.model.keys import read_retry_stream
from spark_streams.wire.connection.connection import Argument, Reply, ReplyError
from spark_streams.wire.replies.multi_exec import execute_packed, transact_each
from spark_streams.wire.replies.replies import find_errors

Command = Sequence[Argument]

_TRIES_IF_TAKEN = 100  # of a page of entries that wait for a retry

_log = logging.getLogger("spark_streams.deadletter")


@dataclass
class _Unmoved:
    """Dead letters that were deleted although their entry was refused. serials: of the states that each try to put them
    back writes: if the server has one of them, they are back."""

    commands: Sequence[Command]
    why: ReplyError
    serials: set[int] = field(default_factory=set)


class Mover:
    """Transactions of one run. vanished: dead letters that were moved, but that another program had deleted just
    before."""

    def __init__(self, run: RedriveRun) -> None:
        self.vanished = 0
        self._run = run
        # A query takes entries that wait for a retry: these must not be moved, too.
        self._is_taken_from = read_retry_stream(run.stream) is not None
        self._tries = 0  # of this page
        self._sent: dict[int, PagePlan] = {}  # by serial: since the last transaction that is known to have succeeded
        self._unmoved: _Unmoved | None = None

    def begin(self) -> PagePlan | None:
        """Watch the state, and finish the page that an earlier process or connection began. Return the plan of a page
        whose move turns out to be executed; otherwise None, and a page may be read and moved.

        Raises RedriveTakenError, ServerError; then it may be called again.
        """
        run = self._run
        if self._unmoved is not None:
            self._put_back(self._unmoved)
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
        away = self._append_first(plan)
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
                f"be moved, and stay in it: {refused[0].message}"
            )
        return True

    def _append_first(self, plan: PagePlan) -> Sequence[bytes]:
        """Return the destinations whose entries are appended and noted before their dead letters are deleted.

        Raises ServerReplyError if only a transaction that fails again and again could move them."""
        if self._tries < WATCHED_TRIES:
            return in_other_slots(self._run, plan.to)
        if not self._is_taken_from:
            return plan.to
        if self._tries < _TRIES_IF_TAKEN:
            return []
        raise ServerReplyError(
            f"stream {self._run.stream!r} at {self._run.session.address} or the stream that its entries return to "
            f"changed during each of {_TRIES_IF_TAKEN} transactions: its remaining entries stay. Start the redrive "
            "again while fewer entries are written"
        )

    def _succeeded(self) -> None:
        self._sent.clear()
        self._tries = 0

    def _close(self, plan: PagePlan, local: Part, appended: Sequence[Part]) -> bool:
        """Append the entries for streams in this slot. Delete their dead letters, and those of the appended parts.
        Return False if a watched key has changed."""
        run, home = self._run, self._run.home
        streams = [plan.to[code] for code in np.unique(plan.target[local.places]).tolist()]
        watch_destinations(home, run.stream, streams, streams, len(local.ids))
        places = np.concatenate([local.places, *[part.places for part in appended]])
        ids: list[bytes] = [*local.ids, *[entry for part in appended for entry in part.ids]]
        if not ids:  # all of them were refused
            return True
        moved = int(np.count_nonzero(places < plan.moved))
        state = run.next(moved, len(places) - moved)
        self._sent[state.serial] = plan
        delete: Command = ("XDEL", run.stream, *ids)
        results = execute_packed(home, local.requests, len(local.ids), delete, state.store(run.stream))
        if results is None:
            return False
        run.state = state
        added, deleted = results[: len(local.ids)], results[len(local.ids)]
        self.vanished += len(ids) - deleted if isinstance(deleted, int) else 0
        failed = find_errors(added)
        if failed:
            rows = plan.rows[local.places[[place for place, _ in failed]]]
            fields = [[word for pair in pairs for word in pair] for pairs in plan.page.all_fields(rows).to_pylist()]
            self._unmoved = _Unmoved([("XADD", run.stream, "*", *words) for words in fields], failed[0][1])
            self._put_back(self._unmoved)
        return True

    def _put_back(self, unmoved: _Unmoved) -> None:
        """Append these dead letters to their stream again, each once. Raises ServerReplyError, also after success."""
        run, count = self._run, len(unmoved.commands)
        results: list[Reply] | None = None
        tries = 0
        while results is None:
            # While the stream is watched, no XADD that is executed is refused: a lost reply leaves no doubt.
            stored = run.stored(*([run.stream] if tries < WATCHED_TRIES else []))
            if stored is not None and stored.serial in unmoved.serials:  # the reply was lost
                run.state = stored
                break
            self._require_ids(unmoved)
            if stored is None:  # another process has taken over meanwhile, and the state is its own
                results = transact_each(run.home, unmoved.commands)
            else:
                run.state = stored
                state = run.next(-count)
                unmoved.serials.add(state.serial)
                results = transact_each(run.home, [*unmoved.commands, state.store(run.stream)])
                run.state = stored if results is None else state
            tries += 1
        refused = find_errors((results or [])[:count])
        if refused:
            raise self._lost([unmoved.commands[place] for place, _ in refused], unmoved.why, refused[0][1])
        self._unmoved = None
        raise ServerReplyError(
            f"{count} dead letters of stream {run.stream!r} at {run.session.address} could not be moved and were put "
            f"back at its end: {unmoved.why}"
        )

    def _require_ids(self, unmoved: _Unmoved) -> None:
        """Require that the dead-letter stream can take these again. Raises ServerReplyError."""
        try:
            watch_and_check_ids(self._run.home, [], [self._run.stream], len(unmoved.commands))
        except (WrongKeyTypeError, IdsExhaustedError) as error:
            raise self._lost(unmoved.commands, unmoved.why, error) from None

    def _lost(self, commands: Sequence[Command], why: ReplyError, error: Exception) -> ServerReplyError:
        """Log the fields of dead letters that no stream takes. Return the error."""
        run = self._run
        self._unmoved = None
        for command in commands:
            _log.error("a dead letter of stream %r that no stream takes has the fields %r", run.stream, command[3:])
        return ServerReplyError(
            f"{len(commands)} dead letters of stream {run.stream!r} at {run.session.address} could not be moved "
            f"({why}), and could not be put back ({error}). They are in no stream: the log has their fields. Restore "
            "the stream, and append them with XADD"
        )


class Rehearsal(Mover):
    """A dry run: it counts what would be moved, and sends nothing."""

    def begin(self) -> None:
        """Do nothing: a dry run leaves no state."""

    def move(self, plan: PagePlan) -> bool:
        """Count the page."""
        self._run.state = self._run.state.after(0, plan.moved, plan.parked)
        return True
