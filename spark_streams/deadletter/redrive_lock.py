"""What keeps two processes from moving the same dead letters: a lease, and a state that transactions find unchanged.

The lease (`rstream:lease:…`) refuses a second process while the first one lives. Its session expires: a process that
stood still for longer than that (SIGSTOP, a machine asleep) may wake up beside its successor. So every transaction
WATCHes the key `rstream:redrive:{stream}`, and writes the next state there: a process that was not the last one to
write it moves nothing.

The state also tells the outcome of a transaction whose reply got lost, and lets a run that was killed go on under the
same bound when it is started again with the same options within a day.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace

from spark_streams import lease
from spark_streams.errors import RedriveTakenError
from spark_streams.ids import InvalidStreamId, StreamId
from spark_streams.keys import key_beside
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.server import Server

KEPT_MS = 86_400_000


def redrive_key(stream: str) -> bytes:
    """The key of the state of a redrive of this stream."""
    return key_beside(stream, "redrive")


class RedriveLease(lease.Lease):
    """The lease of the process that moves or purges dead letters of a stream. Raises RedriveTakenError."""

    def key_of(self, stream: str) -> bytes:
        return key_beside(stream, "lease", "redrive")

    def taken(self, stream: str, where: str) -> RedriveTakenError:
        return RedriveTakenError(
            f"another process moves or purges dead letters of stream {stream!r} at {self._address}{where}; "
            "let it end, or stop it"
        )


@dataclass(frozen=True)
class RedriveState:
    """How far a redrive is; the names are those of its JSON. run: a token; serial: transactions that were tried in
    that run; orders: a digest of its options; bound: the last dead letter that it may move; moved, parked: dead
    letters, over all processes that worked on the run."""

    run: str
    serial: int
    orders: str
    bound: str
    moved: int = 0
    parked: int = 0

    @classmethod
    def begin(cls, digest: str, bound: StreamId) -> RedriveState:
        """A run that moves nothing yet."""
        return cls(secrets.token_hex(8), 0, digest, str(bound))

    @classmethod
    def parse(cls, value: bytes | None) -> RedriveState | None:
        """None where there is none, or one that this version does not know."""
        try:
            state = cls(**json.loads(value or b""))
            StreamId.parse(state.bound)
        except (ValueError, TypeError, InvalidStreamId):
            return None
        return state

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def after(self, serial: int, moved: int, parked: int) -> RedriveState:
        """When the transaction with this number has moved so many."""
        return replace(self, serial=serial, moved=self.moved + moved, parked=self.parked + parked)

    def taken_over(self) -> RedriveState:
        """The same run, continued by another process."""
        return replace(self, run=secrets.token_hex(8))


def begin_or_continue(server: Server, stream: str, fresh: RedriveState) -> tuple[RedriveState, bool]:
    """(this run's state, whether it goes on with one that was killed). fresh: the state of a run that begins.

    To be called under the lease, and again with the same state where it has raised ServerError: a try that is carried
    out late finds another one there.
    """
    key = redrive_key(stream)
    while True:
        left = RedriveState.parse(server.execute_all([("WATCH", key), ("GET", key)])[1])
        goes_on = left is not None and left.orders == fresh.orders and left.run != fresh.run
        state = left.taken_over() if left is not None and goes_on else fresh
        if transact(server, [("SET", key, bytes(state), "PX", KEPT_MS)]) is not None:
            return state, goes_on
