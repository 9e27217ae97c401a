"""State of a redrive on the server: its progress, and which process may go on.

The lease (redrive_lease.py) refuses a second process while the first one lives. Its session expires: a process that
stood still for longer than that (SIGSTOP, a machine asleep) may wake up beside its successor. So every transaction
WATCHes the key `rstream:redrive:{stream}`, and writes the next state there. A process that was not the last one to
write it moves nothing.

The state also tells the outcome of a transaction whose reply was lost. A run that was killed continues under the same
bound if it is started again with the same options within a day.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from spark_streams.base.ids import InvalidStreamId, StreamId
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.errors import RedriveTakenError, ServerReplyError, StreamStateError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.operator_commands import redrive_command
from spark_streams.connector.wire.connection.connection import Argument, Connection, Reply
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.session import Session

KEPT_MS = 86_400_000


def redrive_key(stream: str) -> bytes:
    """Return the key of the state of a redrive of this stream."""
    return key_beside(stream, "redrive")


@dataclass(frozen=True)
class RedriveState:
    """State of a redrive; the names are JSON fields."""

    run: str  # a token
    serial: int  # number of tried transactions of this run
    orders: str  # a digest of its options
    bound: str  # the last dead letter that it may move
    moved: int  # dead letters, of all processes that worked on the run
    parked: int
    to: tuple[str, ...]  # the destinations of a page that is being moved

    @classmethod
    def begin(cls, digest: str, bound: StreamId) -> RedriveState:
        """Return a run that has moved nothing yet."""
        return cls(secrets.token_hex(8), 0, digest, str(bound), moved=0, parked=0, to=())

    @classmethod
    def parse(cls, value: bytes | None) -> RedriveState | None:
        """Parse a state. None if there is none, or if this version cannot read it."""
        try:
            state = cls(**json.loads(value or b""))
            StreamId.parse(state.bound)
            return replace(state, to=tuple(state.to))
        except (ValueError, TypeError, InvalidStreamId):
            return None

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def after(self, serial: int, moved: int, parked: int) -> RedriveState:
        """Return the state after the transaction with this number, which moves and parks this many."""
        return replace(self, serial=serial, moved=self.moved + moved, parked=self.parked + parked)

    def since(self, before: RedriveState) -> tuple[int, int]:
        """Return how many dead letters were moved, and parked, since an earlier state."""
        return self.moved - before.moved, self.parked - before.parked

    def taken_over(self) -> RedriveState:
        """Return the same run, continued by another process."""
        return replace(self, run=secrets.token_hex(8))

    def store(self, stream: str) -> tuple[Argument, ...]:
        """Return the command that writes the state. It expires unless a page is being moved."""
        expiry = () if self.to else ("PX", KEPT_MS)
        return ("SET", redrive_key(stream), bytes(self), *expiry)


def begin_or_continue(server: Server, stream: str, fresh: RedriveState) -> tuple[RedriveState, bool]:
    """Write the state of this run. Return it, and whether it continues a killed run. fresh: the state of a new run.

    Call it under the lease, and again with the same state after ServerError: a try that is executed late finds another
    state. Raises StreamStateError if there is a state that this version cannot read.
    """
    key, home = redrive_key(stream), server.connection_for(stream)
    while True:
        _, value = home.execute_all([("WATCH", key), ("GET", key)])
        stored = RedriveState.parse(value)
        if stored is None and value is not None:
            home.execute("UNWATCH")
            raise StreamStateError(
                f"stream {stream!r} at {server.address}: a redrive by another version of spark-streams has left its "
                f"state in key {text(key)!r}, and this version cannot read it. Run {redrive_command(stream)} with "
                "that version until it ends"
            )
        goes_on = stored is not None and stored.orders == fresh.orders and stored.run != fresh.run
        state = stored.taken_over() if stored is not None and goes_on else fresh
        state = replace(state, to=tuple(sorted(stored.to)) if stored is not None else ())
        if transact(home, [state.store(stream)]) is not None:
            return state, goes_on


class RedriveRun:
    """A running redrive. stream: of the dead letters; state: the last known state on the server. It is watched before
    each transaction, and written by each."""

    def __init__(self, session: Session, stream: str, state: RedriveState) -> None:
        self.session = session
        self.stream = stream
        self.state = state
        self._serial = state.serial

    @property
    def home(self) -> Connection:
        """The connection to the server that holds the dead letters and the state."""
        return self.session.connection_for(self.stream)

    def stored(self) -> RedriveState | None:
        """Watch the state. Return it if it is this run's, else None."""
        key = redrive_key(self.stream)
        state = RedriveState.parse(self.home.execute_all([("WATCH", key), ("GET", key)])[1])
        return state if state is not None and state.run == self.state.run else None

    def watch(self) -> None:
        """Do the same. Raises RedriveTakenError if the state is another run's."""
        state = self.stored()
        if state is None:
            self.home.execute("UNWATCH")
            raise RedriveTakenError(
                f"another process has taken over the redrive of stream {self.stream!r} at {self.session.address} "
                "while this one stood still. It moves the remaining dead letters"
            )
        self.state = state

    def next(self, moved: int = 0, parked: int = 0) -> RedriveState:
        """Return the state after a transaction that moves this many. Each try of a transaction has another state."""
        self._serial = max(self._serial, self.state.serial) + 1
        return self.state.after(self._serial, moved, parked)

    def write(self, state: RedriveState, *before: Sequence[Argument]) -> None:
        """Execute commands and write the state in one transaction. Raises a temporary ServerReplyError if the state has
        changed since it was watched."""
        require_unchanged(self, transact(self.home, [*before, state.store(self.stream)]))
        self.state = state

    def end(self) -> None:
        """Delete the state, if it is this run's."""
        if self.stored() is None:
            self.home.execute("UNWATCH")
        else:
            transact(self.home, [("DEL", redrive_key(self.stream))])


def require_unchanged(run: RedriveRun, replies: list[Reply] | None) -> list[Reply]:
    """Return the replies to a transaction. Raises a temporary ServerReplyError if it was not executed."""
    if replies is None:
        raise ServerReplyError(f"the redrive of stream {run.stream!r} was changed meanwhile", "TRYAGAIN")
    return replies
