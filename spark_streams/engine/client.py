"""A client as commands see it: name, protocol, database, transaction, reply mode, blocked command. No socket."""

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
        self.dirty = False  # a watched key changed: EXEC returns nil
        self.watching: list[tuple[Database, bytes]] = []
        self.waiter: Waiter | None = None  # set while blocked
        self.authenticated = True
        self.refusals = 0  # commands refused before it logged in
        self.closing = False  # close the connection when its output is written

    @property
    def is_local(self) -> bool:
        """Whether it is connected by a Unix socket, whose ends have one name, or from a loopback address."""
        return self.address == self.laddr or self.address.startswith(("127.", "[::1]"))

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
        """Reset the transaction, as after EXEC or DISCARD."""
        self.queue = None
        self.broken = False
        self.unwatch()


class Waiter:
    """A blocked command. `attempt` returns its reply, or None if there is none yet; it may raise CommandError."""

    __slots__ = (
        "attempt",
        "client",
        "db",
        "deadline",
        "find_retry_time",
        "keys",
        "needs_key",
        "retry_at",
        "timeout_reply",
    )

    def __init__(
        self, client: Client, db: Database, keys: Sequence[bytes], deadline: int | None,
        attempt: Callable[[], Reply | None], timeout_reply: Reply, find_retry_time: Callable[[], int] | None = None,
        needs_key: bool = False,
    ) -> None:  # fmt: skip
        self.client = client
        self.db = db
        self.keys = keys
        self.deadline = deadline  # Unix milliseconds; None: no timeout
        self.attempt = attempt
        self.timeout_reply = timeout_reply  # the reply after the deadline
        self.find_retry_time = (
            find_retry_time  # after an attempt: when to retry without a change of a key, Unix milliseconds
        )
        self.retry_at = find_retry_time() if find_retry_time is not None else None
        self.needs_key = needs_key  # the command fails if its key is deleted (XREADGROUP)

    def deadlines(self) -> list[int]:
        """Return the waiter's deadline and retry time, as far as it has them, in Unix milliseconds."""
        return [time for time in (self.deadline, self.retry_at) if time is not None]
