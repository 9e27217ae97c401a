"""A client as commands see it: its name, protocol, database, transaction, reply mode, what it waits for. No socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_streams.engine.resp.replies import Reply

if TYPE_CHECKING:
    from spark_streams.engine.resp.requests import Request
    from spark_streams.engine.store.keyspace import Database

REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT, REPLY_SKIPPING = range(4)


class Client:
    """State of one connection."""

    __slots__ = ("address", "authenticated", "broken", "closing", "created", "db", "dirty", "id", "laddr",
                 "last_command", "last_seen", "lib_name", "lib_ver", "name", "queue",
                 "refusals", "reply_mode", "resp", "waiter", "watching")  # fmt: skip

    def __init__(self, identity: int, db: Database, address: str, laddr: str, now: int) -> None:
        self.id = identity
        self.db = db
        self.address = address
        self.laddr = laddr
        self.created = now  # Unix milliseconds
        self.last_seen = now
        self.last_command = b""
        self.name = b""
        self.lib_name = b""
        self.lib_ver = b""
        self.resp = 2
        self.reply_mode = REPLY_ON
        self.queue: list[Request] | None = None  # commands since MULTI
        self.broken = False  # a queued command was refused: EXEC aborts
        self.dirty = False  # a watched key changed: EXEC answers nil
        self.watching: list[tuple[Database, bytes]] = []
        self.waiter: Waiter | None = None  # set while blocked
        self.authenticated = True
        self.refusals = 0  # commands refused before it logged in
        self.closing = False  # close once the output is written

    def unwatch(self) -> None:
        """Forget all watched keys."""
        for db, key in self.watching:
            clients = db.watched.get(key)
            if clients is not None:
                clients.discard(self)
                if not clients:
                    del db.watched[key]
        self.watching.clear()
        self.dirty = False

    def leave_transaction(self) -> None:
        """As after EXEC or DISCARD."""
        self.queue = None
        self.broken = False
        self.unwatch()


class Waiter:
    """One blocked command. `attempt` gives its reply, None while there is nothing yet; it may raise CommandError."""

    __slots__ = ("again", "again_at", "attempt", "client", "db", "deadline", "keys", "needs_key", "nothing")

    def __init__(
        self, client: Client, db: Database, keys: Sequence[bytes], deadline: int | None,
        attempt: Callable[[], Reply | None], nothing: Reply, again: Callable[[], int] | None = None,
        needs_key: bool = False,
    ) -> None:  # fmt: skip
        self.client = client
        self.db = db
        self.keys = keys
        self.deadline = deadline  # Unix milliseconds; None waits for ever
        self.attempt = attempt
        self.nothing = nothing  # the reply when time is up
        self.again = again  # after an attempt: when to try again although no key has changed, in Unix milliseconds
        self.again_at = again() if again is not None else None
        self.needs_key = needs_key  # it ends with an error when a key goes (XREADGROUP)

    def times(self) -> list[int]:
        """When something has to be done about it."""
        return [time for time in (self.deadline, self.again_at) if time is not None]
