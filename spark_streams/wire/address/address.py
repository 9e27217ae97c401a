"""Where the stream server is: URLs in, addresses out. Pure, but for `embedded:`, which may start the bundled engine.

`redis://`, `rediss://`, `unix://` as redis-py reads them; `redis+sentinel://`, `redis+cluster://`, which name several
servers, of which `wire.connect` chooses (`wire.address.server_url` has their forms); `embedded:` for the bundled engine
of this machine: the one where the URL was read, which is the driver's. An executor elsewhere must not start an engine
of its own.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_streams.errors import InvalidOptionError, ServerUnreachableError, UnsupportedError
from spark_streams.wire.address import server_url
from spark_streams.wire.address.identity import Identity
from spark_streams.wire.address.patience import DEFAULT_PATIENCE, Patience

DEFAULT_URL_VARIABLE = "RSTREAM_URL"
IDENTITY_VARIABLES = ("RSTREAM_USERNAME", "RSTREAM_PASSWORD", "RSTREAM_PASSWORD_FILE")
EMBEDDED = "embedded:"


def default_url() -> str:
    """The URL where none is given: `$RSTREAM_URL`, else the bundled engine."""
    return os.environ.get(DEFAULT_URL_VARIABLE) or EMBEDDED


def default_identity() -> Identity:
    """Who connects to that server, where its URL does not say: `$RSTREAM_USERNAME` with `$RSTREAM_PASSWORD` or the file
    `$RSTREAM_PASSWORD_FILE`. Raises InvalidOptionError."""
    user, password, file = (os.environ.get(name, "") for name in IDENTITY_VARIABLES)
    if (password and file) or (user and not (password or file)):
        raise InvalidOptionError(
            f"{' and '.join(IDENTITY_VARIABLES[1:])}: set one of them, with RSTREAM_USERNAME or without"
        )
    return Identity(user, password, file)


@dataclass(frozen=True)
class Address:
    """A checked server URL, who connects, and how long the server is waited for. `str()` hides the login, so it may go
    into plans, logs and errors.

    identity: who connects, where the URL does not say; starts: whether the bundled engine is started where it does not
    run; machine: where the URL was read, "" for here; meeting: the folder in which `embedded:` was looked for there.
    """

    url: str = field(repr=False)
    patience: Patience = field(default=DEFAULT_PATIENCE, repr=False)
    identity: Identity | None = field(default=None, repr=False)
    starts: bool = field(default=True, repr=False)
    machine: str = field(default="", repr=False, compare=False)
    meeting: Path | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the form of a URL without touching the network. Raises InvalidOptionError."""
        scheme = server_url.check(url)
        return cls(url, machine=socket.gethostname(), meeting=_meeting_place() if scheme == "embedded" else None)

    def __str__(self) -> str:
        return server_url.redacted(self.url)

    def without_starting(self) -> Address:
        """The same for whoever only looks."""
        return replace(self, starts=False)

    def with_identity(self, identity: Identity) -> Address:
        """The same, for this user. Raises InvalidOptionError where the URL says who connects, or nobody is asked."""
        if self.is_embedded:
            raise InvalidOptionError(f"url {str(self)!r} takes no login, and one is given {identity}: leave it out")
        if server_url.has_login(self.url):
            raise InvalidOptionError(f"the login stands in url {str(self)!r} and {identity}: give it once")
        return replace(self, identity=identity)

    @property
    def login(self) -> str:
        """Where the login comes from, for messages."""
        return "of the url" if self.identity is None else str(self.identity)

    @property
    def is_embedded(self) -> bool:
        """Whether this is the bundled engine of this machine."""
        return self.url.startswith(EMBEDDED)

    @property
    def asks_sentinels(self) -> bool:
        """Whether sentinels say which server it is."""
        return self.url.startswith(server_url.SENTINEL)

    @property
    def is_cluster(self) -> bool:
        """Whether it is the servers of a cluster."""
        return self.url.startswith(server_url.CLUSTER)

    @property
    def nodes(self) -> tuple[server_url.Node, ...]:
        """(host, port) of each server that the URL names: sentinels, nodes of a cluster, or the one server."""
        return server_url.nodes(self.url)

    def node(self, host: str, port: int) -> Address:
        """One server of those behind this address: the same login, database, TLS and patience."""
        return replace(self, url=server_url.of_node(self.url, (host, port)))

    @property
    def directory(self) -> Path | None:
        """Where the bundled engine keeps its streams; None if it keeps none, or the server is another one."""
        path = urlsplit(self.url).path if self.is_embedded else ""
        return Path(unquote(path)) if path else None

    @property
    def forgets(self) -> bool:
        """Whether the server keeps nothing once nobody uses it: the bundled engine without a directory."""
        return self.is_embedded and self.directory is None

    def resolve(self) -> str:
        """The URL that redis-py connects to; for `embedded:` the engine is found, or started on first use.

        Raises ServerUnreachableError when the engine cannot be started, or does not run and is not to be, or is another
        machine's; UnsupportedError for an address of several servers: one of them is chosen by wire.connect.
        """
        if self.asks_sentinels or self.is_cluster:
            raise UnsupportedError(f"{self} names several servers, and one of them is to be connected to")
        if not self.is_embedded:
            return self.url
        if self.is_elsewhere:
            raise ServerUnreachableError(
                f"{self} is the bundled engine of machine {self.machine!r}, where the driver runs, and this task runs "
                f"on {socket.gethostname()!r}: that engine is reachable on its own machine only; start a server that "
                "all machines reach, and set url (or RSTREAM_URL) to redis://host:port/db",
                passes=False,
            )
        from spark_streams.engine.launch import embedded

        directory, given = self.directory, dict(parse_qsl(urlsplit(self.url).query))
        idle = float(given["idle"]) if "idle" in given else embedded.IDLE_SECONDS
        try:
            if self.starts:
                return embedded.locate(directory, idle, given.get("fsync"), meeting=self.meeting)
            found = embedded.find(directory, meeting=self.meeting)
        except embedded.EngineStartError as error:
            reason = f"the bundled engine at {self} cannot be used: {error}"
            raise ServerUnreachableError(reason, passes=False) from error
        if found is None:
            raise self._not_running(0 if directory is None else embedded.kept_bytes(directory))
        return found

    @property
    def is_elsewhere(self) -> bool:
        """Whether the URL was read on another machine than this one, and means that machine's own server."""
        return self.machine not in ("", socket.gethostname()) and self._is_of_one_machine()

    def _is_of_one_machine(self) -> bool:
        hosts = [host for host, _ in self.nodes]
        return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)

    def beside(self) -> str:
        """What is to be said where nobody answers: an address that means another server on each machine."""
        if not self.is_elsewhere:
            return ""
        here = socket.gethostname()
        return f" (on machine {here!r}; the driver is on {self.machine!r}, and this address is each machine's own)"

    def _not_running(self, kept: int) -> ServerUnreachableError:
        """kept: bytes on disk that an engine would begin with."""
        what = f"its streams are on disk ({kept:,} bytes)" if kept else "so there is nothing to look at"
        given = "" if self.url == EMBEDDED else f" --url '{self}'"
        how = f"a query or `rstream url --start{given}` starts one"
        other = "" if kept else "; for another server set url (or RSTREAM_URL)"
        return ServerUnreachableError(f"no bundled engine is running at {self}, {what}; {how}{other}", passes=False)


def _meeting_place() -> Path:
    from spark_streams.engine.launch import embedded

    return embedded.meeting_place()
