"""The state of one redrive while it runs: watched before each transaction, and written by each."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.deadletter.redrive_lock import RedriveState, redrive_key
from spark_streams.errors import RedriveTakenError, ServerReplyError
from spark_streams.wire.connection import Argument, Connection, ReplyError
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.session import Session

Command = Sequence[Argument]


class RedriveRun:
    """stream: of the dead letters; state: what the server has, as far as is known."""

    def __init__(self, session: Session, stream: str, state: RedriveState) -> None:
        self.session = session
        self.stream = stream
        self.state = state
        self._serial = state.serial

    @property
    def home(self) -> Connection:
        """The connection to the server that has the dead letters and the state."""
        return self.session.of(self.stream)

    def stored(self, *also: Argument) -> RedriveState | None:
        """Watch the state, and the keys in `also`. Return the state if it is this run's, else None."""
        key = redrive_key(self.stream)
        state = RedriveState.parse(self.home.execute_all([("WATCH", key, *also), ("GET", key)])[1])
        return state if state is not None and state.run == self.state.run else None

    def watch(self, *also: Argument) -> None:
        """The same. Raises RedriveTakenError if the state is another run's."""
        state = self.stored(*also)
        if state is None:
            self.home.execute("UNWATCH")
            raise RedriveTakenError(
                f"another process has taken over the redrive of stream {self.stream!r} at {self.session.address} "
                "while this one stood still; it moves what is left"
            )
        self.state = state

    def next(self, moved: int = 0, parked: int = 0) -> RedriveState:
        """Return the state after a transaction that moves so many. No other try of a transaction leaves the same."""
        self._serial = max(self._serial, self.state.serial) + 1
        return self.state.after(self._serial, moved, parked)

    def write(self, state: RedriveState, *before: Command) -> None:
        """Execute commands and write the state in one transaction. Raises a ServerReplyError that passes if the state
        has changed since it was watched."""
        replies = require_unchanged(self, transact(self.home, [*before, state.store(self.stream)]))
        for command, reply in zip(before, replies, strict=False):
            if isinstance(reply, ReplyError):
                raise self.home.error_of(reply, command[:2])
        self.state = state

    def end(self) -> None:
        """Delete the state, if it is this run's."""
        if self.stored() is None:
            self.home.execute("UNWATCH")
        else:
            transact(self.home, [("DEL", redrive_key(self.stream))])


def require_unchanged(run: RedriveRun, replies: list[object] | None) -> list[object]:
    """Return the replies to a transaction. Raises a ServerReplyError that passes if it was not executed."""
    if replies is None:
        raise ServerReplyError(f"the redrive of stream {run.stream!r} was changed meanwhile", "TRYAGAIN")
    return replies
