"""Where the stream server is: URLs in, addresses out. Pure, but for `embedded:`, which may start the bundled engine.

`redis://`, `rediss://`, `unix://` as redis-py reads them; `embedded:` for the bundled engine of this machine: the one
where the URL was read, which is the driver's. An executor elsewhere must not start an engine of its own.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_streams.errors import InvalidOptionError, ServerUnreachableError, UnsupportedError
from spark_streams.wire.patience import DEFAULT_PATIENCE, Patience

DEFAULT_URL_VARIABLE = "RSTREAM_URL"
EMBEDDED = "embedded:"

_SCHEMES = ("embedded:", "redis://", "rediss://", "unix://")
_LATER = ("redis+cluster://", "redis+sentinel://")
_HOW = "write redis://host:port/db, rediss://…, unix:///path/to.sock or embedded:"
_SECONDS = frozenset({"socket_timeout", "socket_connect_timeout", "idle"})
_LOGIN = frozenset({"db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout"})
_TLS = frozenset(
    {"ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"}
    | {"ssl_check_hostname", "ssl_password"}
)
# The parameters that may stand behind the `?` of each kind of URL.
_PARAMETERS = {"redis": _LOGIN, "rediss": _LOGIN | _TLS, "unix": _LOGIN, "embedded": frozenset({"idle", "fsync"})}
_SHOWN = frozenset({"db", "idle", "fsync", "client_name", "ssl_cert_reqs", "ssl_check_hostname"}) | _SECONDS
_PLAINLY_NO_SECRET = re.compile(r"^[A-Za-z0-9_.-]+(:\d+)?(/\d*)?$")


def default_url() -> str:
    """The URL where none is given: `$RSTREAM_URL`, else the bundled engine."""
    return os.environ.get(DEFAULT_URL_VARIABLE) or EMBEDDED


def redacted(url: str) -> str:
    """The URL as it may be shown: no user, no password, no value of a parameter that could hold one."""
    if not url.startswith((*_SCHEMES, *_LATER)):
        return url if _PLAINLY_NO_SECRET.match(url) else "(not shown, it may hold a password)"
    head, question, query = url.partition("?")
    scheme, slashes, rest = head.partition("://")
    login, at, rest = rest.rpartition("@")
    shown = f"{scheme}{slashes}{'***' if login else ''}{at}{rest}"
    if not at and scheme in ("redis", "rediss") and not re.match(r"^[^:]*(:\d*)?(/|$)", rest):
        shown = f"{scheme}{slashes}***"  # a password, with the host forgotten
    pairs = [pair.partition("=") for pair in query.split("&")] if question else []
    return shown + question + "&".join(k + e + (v if k in _SHOWN else "***") for k, e, v in pairs)


@dataclass(frozen=True)
class Address:
    """A checked server URL, and how long the server is waited for. `str()` hides the login, so it may go into plans,
    logs and errors.

    starts: whether the bundled engine is started where it does not run; machine: where the URL was read, "" for here;
    meeting: the folder in which `embedded:` was looked for there.
    """

    url: str = field(repr=False)
    patience: Patience = field(default=DEFAULT_PATIENCE, repr=False)
    starts: bool = field(default=True, repr=False)
    machine: str = field(default="", repr=False, compare=False)
    meeting: Path | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the form of a URL without touching the network. Raises InvalidOptionError, UnsupportedError."""
        if url.startswith(_LATER):
            scheme = url.split("://", 1)[0]
            raise UnsupportedError(f"{scheme}:// is not available yet; give one server as redis://host:port/db")
        if not url.startswith(_SCHEMES):
            raise InvalidOptionError(f"url {redacted(url)!r} is not a server address; {_HOW}")
        scheme = url.split(":", 1)[0]
        if scheme in ("redis", "rediss"):
            _check_host_and_port(url)
        elif scheme == "embedded" and urlsplit(url).netloc:
            raise InvalidOptionError(f"url {redacted(url)!r}: write embedded:, embedded:///dir or embedded:?idle=60")
        _check_parameters(url, scheme)
        return cls(url, machine=socket.gethostname(), meeting=_meeting_place() if scheme == "embedded" else None)

    def __str__(self) -> str:
        return redacted(self.url)

    def without_starting(self) -> Address:
        """The same for whoever only looks."""
        return replace(self, starts=False)

    @property
    def is_embedded(self) -> bool:
        """Whether this is the bundled engine of this machine."""
        return self.url.startswith(EMBEDDED)

    @property
    def forgets(self) -> bool:
        """Whether the server keeps nothing once nobody uses it: the bundled engine without a directory."""
        return self.is_embedded and not urlsplit(self.url).path

    def resolve(self) -> str:
        """The URL that redis-py connects to; for `embedded:` the engine is found, or started on first use.

        Raises ServerUnreachableError when the engine cannot be started, or does not run and is not to be, or is another
        machine's.
        """
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

        parts = urlsplit(self.url)
        directory = Path(unquote(parts.path)) if parts.path else None
        given = dict(parse_qsl(parts.query))
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
        if not self.url.startswith(("redis://", "rediss://")):
            return True
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

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


def _check_host_and_port(url: str) -> None:
    shown = redacted(url)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its text would repeat what was typed where the port belongs
        raise InvalidOptionError(f"url {shown!r}: host and port cannot be read; write redis://host:port/db") from None
    if not host:
        raise InvalidOptionError(f"url {shown!r} names no host; write redis://host:port/db")
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise InvalidOptionError(f"url {shown!r}: the database is not a number; write redis://host:port/0")


def _check_parameters(url: str, scheme: str) -> None:
    shown, allowed = redacted(url), _PARAMETERS[scheme]
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"{scheme}: knows {', '.join(sorted(allowed))}"
            raise InvalidOptionError(f"url {shown!r}: unknown parameter {name!r}; {hint}")
        if name in _SECONDS and not _is_above_zero(value):
            raise InvalidOptionError(f"url {shown!r}: {name} must be a number of seconds above 0")
        if name == "fsync" and (value not in ("always", "everysec", "no") or not urlsplit(url).path):
            raise InvalidOptionError(f"url {shown!r}: fsync is always, everysec or no, and wants embedded:///directory")
        if name == "db" and not (value.isascii() and value.isdigit()):
            raise InvalidOptionError(f"url {shown!r}: db must be a number")


def _is_above_zero(text: str) -> bool:
    try:
        return 0 < float(text) < 1e9
    except ValueError:
        return False
