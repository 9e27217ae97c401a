"""A page of dead letters moved to streams in other slots of a cluster: no transaction covers both sides.

    rstream:redrive:{stream}          the state, as on one server: who did not write it last moves nothing
    rstream:redrive:{stream}:to       the streams that letters are on their way to
    rstream:redriven:{to}:<stream>    the letters that `to` has an entry of

    → WATCH redriven                       on each stream's node, before the state is read
    → WATCH state   GET state              is it still ours?
    → MULTI   SADD to …   SET state   EXEC
    → MULTI   XADD …   HSET redriven ids   EXEC     on each stream's node
    → MULTI   XDEL ids   SET state   EXEC           what was moved is gone from where it was
    → DEL redriven   SREM to

Whoever begins, and finds streams in `to`, first does what is left of the last three lines: so a process that dies
anywhere leaves each letter in one place, or in two of which one is known. It writes into `redriven` before it reads it:
a transaction of a process that stood still meanwhile fails by its WATCH then, or is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_streams.deadletter.ids_left import question, require_room
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.deadletter.redrive_lock import KEPT_MS, RedriveState, redrive_key
from spark_streams.deadletter.redrive_plan import PagePlan, RedriveOptions
from spark_streams.errors import RedriveTakenError, RStreamError, ServerReplyError, WrongKeyTypeError
from spark_streams.keys import key_beside
from spark_streams.wire.connection import Argument, Connection, ReplyError
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.replies import errors_among, parse_replies
from spark_streams.wire.session import Session

_FENCE = b"by"  # a field of `redriven` that is no letter's id

Letters = list[tuple[bytes, Sequence[bytes]]]  # id, XADD


class MoverAcrossSlots:
    """The transactions of one run (as Mover). uncounted: letters that were moved without a page that was told."""

    def __init__(self, session: Session, options: RedriveOptions, state: RedriveState) -> None:
        self.session = session
        self.vanished = 0
        self.uncounted = 0
        self._stream = options.stream
        self._key = redrive_key(options.stream)
        self._open = key_beside(options.stream, "redrive", "to")
        self._state = state

    def move(self, read: Callable[[], tuple[DeadLetterPage, PagePlan]]) -> tuple[DeadLetterPage, PagePlan]:
        """Read a page, and move what is meant. Raises RedriveTakenError, ServerError; then `move` may be called
        again, and finishes what was begun."""
        while True:
            home = self._watch()
            left = home.execute("SMEMBERS", self._open)
            if left:
                self.uncounted += self._finish(sorted(left), 0)
                continue
            page, plan = read()
            if not len(plan.rows):
                home.execute("UNWATCH")
                return page, plan
            moved = self._move(home, plan)
            if moved is not None:
                return page, plan

    def end(self) -> None:
        """The run is complete: nothing is left of it. May be called again where it has raised ServerError."""
        home = self.session.of(self._stream)
        stored = RedriveState.parse(home.execute_all([("WATCH", self._key), ("GET", self._key)])[1])
        if stored is not None and stored.run == self._state.run:
            transact(home, [("DEL", self._key)])
        else:
            home.execute("UNWATCH")

    # -- the state --------------------------------------------------------------------------------------------------

    def _watch(self) -> Connection:
        """The node of the dead letters, where the state is watched and ours. Raises RedriveTakenError."""
        home = self.session.of(self._stream)
        stored = RedriveState.parse(home.execute_all([("WATCH", self._key), ("GET", self._key)])[1])
        if stored is None or stored.run != self._state.run:
            home.execute("UNWATCH")
            raise RedriveTakenError(
                f"another process has taken over the redrive of stream {self._stream!r} at {self.session.address} "
                "while this one stood still; it moves what is left"
            )
        self._state = stored  # the reply to what wrote it may have been lost
        return home

    def _write(self, home: Connection, moved: int, *commands: Sequence[Argument]) -> bool:
        """These and the next state in one transaction; False where the state has changed since `_watch`."""
        state = self._state.after(self._state.serial + 1, moved, 0)
        replies = transact(home, [*commands, ("SET", self._key, bytes(state), "PX", KEPT_MS)])
        for command, reply in zip(commands, replies or (), strict=False):
            if isinstance(reply, ReplyError):
                raise home.error_of(reply, command[:2])
        return replies is not None

    # -- moving -----------------------------------------------------------------------------------------------------

    def _move(self, home: Connection, plan: PagePlan) -> int | None:
        """Move a page; how many letters. None where somebody has changed the state."""
        letters: dict[bytes, Letters] = {}
        for entry, command in zip(plan.ids, parse_replies(plan.requests), strict=True):
            letters.setdefault(command[1], []).append((entry, command))
        if not self._write(home, 0, ("SADD", self._open, *letters)):
            return None
        refused: list[RStreamError] = []
        for to, some in letters.items():
            refused += self._append(to, some)
        self._watch()
        moved = self._finish(list(letters), len(plan.ids) - len(refused))
        if refused:
            self.uncounted += moved
            raise ServerReplyError(
                f"{len(refused)} dead letters of stream {self._stream!r} at {self.session.address} could not be moved "
                f"and stay where they are: {refused[0].message}"
            )
        return moved

    def _append(self, to: bytes, letters: Letters) -> list[RStreamError]:
        """Append to one stream, and note it there. The errors of those that were refused. Raises WrongKeyTypeError,
        IdsExhaustedError; and a ServerReplyError that passes where another process came between."""
        there, key = self.session.of(to), self._redriven(to)
        watched, kind, told = there.pipeline([("WATCH", key), ("TYPE", to), question(to)])
        try:
            for reply in (watched, kind):
                if isinstance(reply, ReplyError):
                    raise there.error_of(reply, ("XADD", to))
            if kind not in (b"stream", b"none"):
                name = to.decode("utf-8", "replace")
                raise WrongKeyTypeError(
                    f"dead letters of stream {self._stream!r} cannot go to key {name!r} at {self.session.address}: it "
                    f"holds a {kind.decode()}; name a stream (--to)"
                )
            require_room(there, to, told, len(letters))
            self._watch()  # ours still, behind the WATCH over there
        except Exception:
            there.execute("UNWATCH")
            raise
        noted = [word for entry, _ in letters for word in (entry, b"")]
        replies = transact(there, [*[command for _, command in letters], ("HSET", key, *noted)])
        if replies is None:
            raise ServerReplyError(f"the redrive of stream {self._stream!r} was changed meanwhile", "TRYAGAIN")
        refused = errors_among(replies[: len(letters)])
        if refused:
            there.execute("HDEL", key, *[letters[place][0] for place, _ in refused])
        return [there.error_of(why, ("XADD", to)) for _, why in refused]

    def _finish(self, streams: Sequence[bytes], known: int) -> int:
        """Remove the letters that these streams have entries of; how many. The state is watched, and ours. known: how
        many they are, 0 where a process before this one, or a connection, has ended amid it."""
        ids: list[bytes] = []
        for to in streams:
            there = self.session.of(to)
            key = self._redriven(to)
            _, flat = there.execute_all([("HSET", key, _FENCE, self._state.run), ("HGETALL", key)])
            ids += [entry for entry in flat[0::2] if entry != _FENCE]
        home = self.session.of(self._stream)
        there_still = home.execute_all([("XRANGE", self._stream, entry, entry) for entry in ids])
        left = [entry for entry, found in zip(ids, there_still, strict=True) if found]
        self.vanished += max(0, known - len(left))
        if left and not self._write(home, len(left), ("XDEL", self._stream, *left)):
            raise ServerReplyError(f"the redrive of stream {self._stream!r} was changed meanwhile", "TRYAGAIN")
        if not left:
            home.execute("UNWATCH")
        for to in streams:
            self.session.of(to).execute("DEL", self._redriven(to))
        home.execute("SREM", self._open, *streams)
        return len(left)

    def _redriven(self, to: bytes) -> bytes:
        return key_beside(to, "redriven", self._stream)
