"""Checks before a command runs: password, memory limit, and whether the append-only file is still being loaded.

If none of the three applies, the guard is not `needed`, and no command is checked.
"""

from __future__ import annotations

import logging
import time

from spark_streams.engine.client import Client
from spark_streams.engine.command_table import Command, find
from spark_streams.engine.resp.request_parser import Request
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.resp.xadd_batch import XaddBatch
from spark_streams.engine.settings import Config
from spark_streams.engine.store.keyspace import MemoryGauge

OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
LOADING = "LOADING Redis is loading the dataset in memory"
WRONG_PASSWORD = "WRONGPASS invalid username-password pair or user is disabled."
# First words of an HTTP request; a browser sends them before any body. Source: Redis' `processCommand`.
HTTP_WORDS = frozenset((b"post", b"host:"))
MAX_REFUSALS = 100  # commands refused to a client that is not logged in, before its connection is closed
MAX_WATCHED = 64 * 1024  # bytes of keys that a client may watch while there is no memory
# Commands that take memory, and are allowed while there is none: they count all the same.
_GROWING = frozenset(("xreadgroup", "xclaim", "xautoclaim", "client|setname", "client|setinfo", "hello"))
_QUIET_SECONDS = 60
HTTP_REQUEST = (
    "it sent an HTTP request (POST or Host:), as a web page does that tries to run commands here. None was run"
)

log = logging.getLogger("rstream.engine")


class HttpRequestError(Exception):
    """The client sent a line of an HTTP request. Close the connection, and do not run what follows."""


class AccessGuard:
    """Decides which commands are refused. There is one guard for each engine."""

    def __init__(self, config: Config, memory: MemoryGauge) -> None:
        self._config = config
        self._memory = memory
        self._password = b""
        self._loading = False
        self._next_warning: dict[str, float] = {}  # time.monotonic() from which each warning may be logged again
        self.needed = False  # whether commands must be checked
        config.on_change("requirepass", self._password_changed)
        config.on_change("maxmemory", self._limit_changed)

    def _password_changed(self) -> None:
        self._password = self._config.text("requirepass").encode("utf-8", "surrogateescape")
        self._refresh()

    def _limit_changed(self) -> None:
        self._memory.set_limit(self._config.number("maxmemory"))
        self._refresh()

    def _refresh(self) -> None:
        self.needed = bool(self._password or self._memory.limit or self._loading)

    def set_loading(self, loading: bool) -> None:
        """Set whether the append-only file is being loaded: then only commands that need no data are allowed."""
        self._loading = loading
        self._refresh()

    @property
    def has_password(self) -> bool:
        """Whether clients must authenticate."""
        return bool(self._password)

    def must_authenticate(self, client: Client) -> bool:
        """Whether this client must still authenticate."""
        return bool(self._password) and not client.authenticated

    def admit(self, client: Client, user: bytes, password: bytes) -> None:
        """Authenticate a client (AUTH, HELLO AUTH). Raises CommandError (WRONGPASS)."""
        import hmac  # it loads OpenSSL: not at every start

        # As in Redis: if no password is set, the default user may log in with any password.
        if user != b"default" or (self._password and not hmac.compare_digest(password, self._password)):
            raise CommandError(WRONG_PASSWORD)
        client.authenticated = True

    def count_refusal(self, client: Client) -> None:
        """Count a refused command of a client that is not logged in; close the client after `MAX_REFUSALS`."""
        client.refusals += 1
        if client.refusals == MAX_REFUSALS:
            client.closing = True
            self.warn_closing(client, f"{MAX_REFUSALS} commands refused before it logged in")

    def warn_closing(self, client: Client, why: str) -> None:
        """Log why an unauthenticated client's connection is closed. Each reason is logged at most once a minute."""
        moment = time.monotonic()
        if moment >= self._next_warning.get(why, 0):
            self._next_warning[why] = moment + _QUIET_SECONDS
            log.warning("closing %s: %s", client.address, why)

    def check_allowed(self, client: Client, spec: Command, args: list[bytes]) -> None:
        """Raise CommandError (NOAUTH, LOADING or OOM) if the client may not run this command now."""
        if self._password and not client.authenticated and "noauth" not in spec.flags:
            raise CommandError("NOAUTH Authentication required.")
        if self._loading and "loading" not in spec.flags:
            raise CommandError(LOADING)
        if self._memory.limit:
            self._check_memory(client, spec, args)

    def _check_memory(self, client: Client, spec: Command, args: list[bytes]) -> None:
        """Raise CommandError (OOM) if the command may take memory and there is none."""
        memory = self._memory
        if client.queue is not None:
            # As in Redis: any command that would be queued.
            is_refused = not spec.flags & {"intransaction", "nomulti"}
        else:
            is_refused = "denyoom" in spec.flags or (spec.name == "watch" and client.watched_bytes > MAX_WATCHED)
        if is_refused and memory.full():
            raise CommandError(OUT_OF_MEMORY)
        if client.queue is None and ("denyoom" in spec.flags or spec.name in _GROWING):
            memory.note(args)
        elif spec.name == "exec" and client.queue and self._any_denied(client.queue) and memory.full():
            client.leave_transaction()
            raise CommandError(f"EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}")

    def _any_denied(self, queue: list[Request]) -> bool:
        return any(isinstance(request, XaddBatch) or "denyoom" in find(request).flags for request in queue)
