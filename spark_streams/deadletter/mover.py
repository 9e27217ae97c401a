"""A page of dead letters moved in one transaction: XADDs, XDEL and the redrive's next state.

    → WATCH state, stream   GET state                nobody else moves dead letters of this stream
    → XRANGE stream                                  a page; what was moved before is gone from it
    → WATCH destinations   TYPE …   XINFO …   MULTI  a command that fails inside EXEC would not hold up the others
    → XADD …   XDEL …   SET state   EXEC

Live streams are written to all the time, and a WATCH on them fails each time: after a few failures a page is tried with
the state alone. What could go wrong then is noticed and made good: dead letters whose XADD failed are put back, those
that somebody deleted meanwhile are counted.

Whether a transaction whose reply was lost was carried out, the state tells: each try would write another one. It may be
carried out late, while the next one is tried; so it is remembered until one is known to have succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_streams.deadletter.ids_left import question, require_room
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.deadletter.redrive_lock import KEPT_MS, RedriveState, redrive_key
from spark_streams.deadletter.redrive_plan import PagePlan, RedriveOptions
from spark_streams.errors import RedriveTakenError, ServerReplyError, WrongKeyTypeError
from spark_streams.keys import read_retry_stream
from spark_streams.wire.connection import Argument, Reply, ReplyError, pack
from spark_streams.wire.multi_exec import Outcome, transact
from spark_streams.wire.replies import errors_among
from spark_streams.wire.session import Session

WATCHED_TRIES = 3  # of a page with all its keys watched


@dataclass(frozen=True)
class _Try:
    """A transaction that was sent, and the state that it would leave."""

    state: RedriveState
    page: DeadLetterPage
    plan: PagePlan


@dataclass
class _Owed:
    """Dead letters that were deleted and whose entry was refused. states: what the server has when they are back, by
    one of the tries to put them back."""

    commands: Sequence[tuple[Argument, ...]]
    why: ReplyError
    states: list[RedriveState] = field(default_factory=list)


class Mover:
    """The transactions of one run. state: what the server has; vanished: moved dead letters that somebody else had
    deleted a moment before."""

    def __init__(self, session: Session, options: RedriveOptions, state: RedriveState) -> None:
        self.session = session
        self.vanished = 0
        self.uncounted = 0  # each page that is moved is told
        self._options = options
        self._key = redrive_key(options.stream)
        # A query takes what waits for another try: what it has taken must not be moved, too.
        self._is_taken_from = read_retry_stream(options.stream) is not None
        self._state = state
        self._serial = state.serial
        self._unheard: list[_Try] = []  # sent since the last one that is known to have succeeded; nobody knows
        self._owed: _Owed | None = None

    def move(self, read: Callable[[], tuple[DeadLetterPage, PagePlan]]) -> tuple[DeadLetterPage, PagePlan]:
        """Read a page, and move what is meant. Raises RedriveTakenError, ServerError; then `move` may be called
        again, and finds out what has happened."""
        tries = 0
        while True:
            if self._owed is not None:
                self._put_back(self._owed)
            watch_all = tries < WATCHED_TRIES
            stored = self._watch(*([self._options.stream] if watch_all or self._is_taken_from else []))
            heard = self._hear(stored)
            if heard is not None:
                self.session.get().execute("UNWATCH")
                return heard.page, heard.plan
            page, plan = read()
            if not len(plan.rows):
                self.session.get().execute("UNWATCH")
                return page, plan
            self._open(plan, watch_all)
            if self._send(page, plan):
                return page, plan
            tries += 1

    def end(self) -> None:
        """The run is complete: nothing is left of it. May be called again where it has raised ServerError."""
        if self._watch() == bytes(self._state):
            transact(self.session.get(), [("DEL", self._key)])
        else:
            self._ask([("UNWATCH",)])

    def _watch(self, *also: Argument) -> bytes | None:
        """The state that the server has, from when on it must not change; nor may `also`."""
        stored: bytes | None = self._ask([("WATCH", self._key, *also), ("GET", self._key)])[1]
        return stored

    def _hear(self, stored: bytes | None) -> _Try | None:
        """The transaction of unknown outcome that was carried out, if one was. Raises RedriveTakenError."""
        if stored == bytes(self._state):
            return None
        for attempt in self._unheard:
            if stored == bytes(attempt.state):
                self._succeeded(attempt.state)
                return attempt
        self.session.get().execute("UNWATCH")
        raise RedriveTakenError(
            f"another process has taken over the redrive of stream {self._options.stream!r} at {self.session.address} "
            "while this one stood still; it moves what is left"
        )

    def _succeeded(self, state: RedriveState) -> None:
        self._state = state
        self._unheard.clear()

    def _open(self, plan: PagePlan, watch: bool) -> None:
        """Begin the transaction. Destinations must be streams with ids left, or not exist.

        Raises WrongKeyTypeError, IdsExhaustedError.
        """
        first: list[tuple[Argument, ...]] = [("WATCH", *plan.to)] if watch else []
        kinds = [("TYPE", stream) for stream in plan.to]
        needed: list[str | bytes] = [*plan.to]
        if not watch:
            needed.append(self._options.stream)  # dead letters may have to be put back
        rooms = [question(stream) for stream in needed]
        server = self.session.of(self._options.stream)
        replies = server.pipeline([*first, *kinds, *rooms, ("MULTI",)])
        try:
            for command, reply in zip([*first, *kinds], replies, strict=False):
                if isinstance(reply, ReplyError):
                    raise server.error_of(reply, command)
            for stream, kind in zip(plan.to, replies[len(first) :], strict=False):
                if kind not in (b"stream", b"none"):
                    raise WrongKeyTypeError(
                        f"dead letters of stream {self._options.stream!r} cannot go to key "
                        f"{stream.decode('utf-8', 'replace')!r} at {self.session.address}: it holds a {kind.decode()}; "
                        "name a stream (--to)"
                    )
            for name, told in zip(needed, replies[len(first) + len(kinds) : -1], strict=True):
                require_room(server, name, told, len(plan.ids))
        except Exception:
            server.execute("DISCARD")
            raise

    def _send(self, page: DeadLetterPage, plan: PagePlan) -> bool:
        """Whether the transaction was carried out; not, where something that is watched has changed."""
        attempt = _Try(self._next(plan.moved, plan.parked), page, plan)
        server = self.session.of(self._options.stream)
        remove = pack("XDEL", self._options.stream, *plan.ids)
        self._unheard.append(attempt)
        server.send(b"".join([plan.requests, remove, pack(*self._store(attempt.state)), pack("EXEC")]))
        replies = server.replies(len(plan.ids) + 3)
        self._unheard.remove(attempt)
        outcome = Outcome.read(replies)
        if outcome.refusal is not None:
            raise server.error_of(outcome.refusal, ("XADD", *plan.to[:1]))
        if outcome.results is None:
            return False
        self._succeeded(attempt.state)
        added, deleted = outcome.results[: len(plan.ids)], outcome.results[len(plan.ids)]
        self.vanished += len(plan.ids) - deleted if isinstance(deleted, int) else 0
        failed = errors_among(added)
        if failed:
            refused = page.whole(plan.rows[[place for place, _ in failed]]).to_pylist()
            stream = self._options.stream
            back = [("XADD", stream, "*", *[word for pair in pairs for word in pair]) for pairs in refused]
            self._owed = _Owed(back, failed[0][1])
            self._put_back(self._owed)
        return True

    def _put_back(self, owed: _Owed) -> None:
        """Have these again, at the end of their stream, each once. Raises ServerReplyError when that is done."""
        while True:
            stored = self._watch()
            back = next((state for state in owed.states if stored == bytes(state)), None)
            if back is not None:  # its reply was lost
                break
            store = []
            if stored == bytes(self._state):  # else another process has taken over meanwhile, and the state is its own
                owed.states.append(self._next(-len(owed.commands), 0))
                store = [self._store(owed.states[-1])]
            if transact(self.session.get(), [*owed.commands, *store]) is not None:
                back = owed.states[-1] if store else None
                break
        self._owed = None
        if back is not None:
            self._succeeded(back)
        raise ServerReplyError(
            f"{len(owed.commands)} dead letters of stream {self._options.stream!r} at {self.session.address} could not "
            f"be moved and were put back at its end: {owed.why}"
        )

    def _next(self, moved: int, parked: int) -> RedriveState:
        """A state that no other try would leave."""
        self._serial += 1
        return self._state.after(self._serial, moved, parked)

    def _store(self, state: RedriveState) -> tuple[Argument, ...]:
        return ("SET", self._key, bytes(state), "PX", KEPT_MS)

    def _ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[Reply]:
        return self.session.get().execute_all(commands)
