"""Server URLs and the addresses that they name. Pure, except that `embedded:` may start the bundled engine.

`redis://`, `rediss://` and `unix://` are read as redis-py reads them. `redis+sentinel://` and `redis+cluster://` name
several servers, from which `wire.connect` selects (`wire.server_url` defines their forms). `embedded:` is the
bundled engine of the machine on which the URL was read, which is the driver's. An executor on another machine must not
start an engine of its own.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_streams.base.given_text import first_line
from spark_streams.connector.errors import (
    InvalidOptionError,
    LoginError,
    NotAllowedError,
    ServerUnreachableError,
    UnsupportedError,
)
from spark_streams.connector.wire import server_url

# -- the login of a URL without one ------------------------------------------------------------------------------------

# The file is read and the provider is called for each connection, so that renewed credentials are used. Long-lived
# connections also check for renewed credentials and log in again (`Connection.renew_login`).

Credentials = tuple[str, ...]  # (password) or (user, password), as redis-py's CredentialProvider returns them


@dataclass(frozen=True)
class Identity:
    """One of password, password_file and provider (`module:function`) is set; a provider returns the user, too. Only
    the file's path and the function's name are ever shown.
    """

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    provider: str = ""

    def __str__(self) -> str:
        """Return the origin of the login, for messages."""
        if self.provider:
            return f"of credentialProvider {self.provider}"
        return f"in passwordFile {self.password_file}" if self.password_file else "of options username and password"

    @property
    def changes(self) -> bool:
        """Whether the credentials may change."""
        return bool(self.provider or self.password_file)

    def credentials(self) -> Credentials:
        """Return the current credentials.

        Raises LoginError if the file cannot be read or is empty, InvalidOptionError if the function does not exist,
        ServerUnreachableError if the provider fails, which may be temporary.
        """
        if self.provider:
            return _of_provider(self.provider)
        password = password_in(self.password_file) if self.password_file else self.password
        return (self.username, password) if self.username else (password,)


NO_PASSWORD = "NOPASSWORD"  # code of a LoginError: the file may be read in the middle of its replacement


def password_in(file: str) -> str:
    """Return the first line of a password file. Raises LoginError."""
    try:
        password = first_line(file).decode()
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        message = f"password file {file} cannot be read: {reason}; every machine with a task needs it"
        raise LoginError(message, NO_PASSWORD) from None
    if not password:
        raise LoginError(f"password file {file} is empty: its first line is the password", NO_PASSWORD)
    return password


def _of_provider(name: str) -> Credentials:
    provider = _provider(name)
    try:
        credentials = tuple(provider.get_credentials())
    except Exception as error:  # noqa: BLE001 - any error: a token service may be unreachable
        reason = f"{type(error).__name__}: {error}"
        raise ServerUnreachableError(f"credentialProvider {name} returned no credentials: {reason}") from None
    if len(credentials) not in (1, 2) or not all(isinstance(part, str) and part for part in credentials):
        raise InvalidOptionError(
            f"credentialProvider {name}: get_credentials() must return (user, password) or (password,), as texts"
        )
    return credentials


class _Provider(Protocol):
    """The same as redis.CredentialProvider."""

    def get_credentials(self) -> Credentials: ...


@functools.cache
def _provider(name: str) -> _Provider:
    """Return the function's provider, created once per process: it may cache and renew a token.

    Raises InvalidOptionError.
    """
    module, _, function = name.partition(":")
    try:
        provider: _Provider = getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001 - it is the user's code
        raise InvalidOptionError(
            f"credentialProvider {name} cannot be used: {type(error).__name__}: {error}; it is module:function, where "
            "the driver and every executor can import it, and returns a redis.CredentialProvider"
        ) from None
    if not callable(getattr(provider, "get_credentials", None)):
        raise InvalidOptionError(
            f"credentialProvider {name} returned a {type(provider).__name__}, which is no redis.CredentialProvider: it "
            "has no get_credentials()"
        )
    return provider


# -- timeouts: an address carries them to each connection --------------------------------------------------------------


@dataclass(frozen=True)
class Patience:
    """Timeouts, in seconds."""

    limit: float = 60.0  # retries without success before RetriesExhaustedError
    first_connection: float = 5.0  # the same if no connection was ever made, because the address may be wrong
    first_pause: float = 0.05  # between two attempts
    longest_pause: float = 2.0  # between two attempts
    reply: float = 5.0  # silence after which a connection is closed
    replicas: float = 10.0  # wait for replicas to receive a write, in turns shorter than `reply`
    sleep: Callable[[float], None] = time.sleep  # function that pauses


DEFAULT_PATIENCE = Patience()

# -- the address -------------------------------------------------------------------------------------------------------

DEFAULT_URL_VARIABLE = "RSTREAM_URL"
IDENTITY_VARIABLES = ("RSTREAM_USERNAME", "RSTREAM_PASSWORD", "RSTREAM_PASSWORD_FILE")
EMBEDDED = "embedded:"


def default_url() -> str:
    """Return the default URL: `$RSTREAM_URL`, else the bundled engine."""
    return os.environ.get(DEFAULT_URL_VARIABLE) or EMBEDDED


def default_identity() -> Identity:
    """Return the login for URLs without one: `$RSTREAM_USERNAME` with `$RSTREAM_PASSWORD` or the file
    `$RSTREAM_PASSWORD_FILE`. Raises InvalidOptionError.
    """
    user, password, file = (os.environ.get(name, "") for name in IDENTITY_VARIABLES)
    if (password and file) or (user and not (password or file)):
        raise InvalidOptionError(
            f"{' and '.join(IDENTITY_VARIABLES[1:])}: set one of them, with RSTREAM_USERNAME or without"
        )
    return Identity(user, password, file)


@dataclass(frozen=True)
class Address:
    """A checked server URL, the login, and timeouts. `str()` hides the login: it may go into plans, logs and errors."""

    url: str = field(repr=False)
    patience: Patience = field(default=DEFAULT_PATIENCE, repr=False)
    identity: Identity | None = field(default=None, repr=False)  # the login, if the URL has none
    starts: bool = field(default=True, repr=False)  # the bundled engine is started if it does not run
    machine: str = field(default="", repr=False, compare=False)  # the host on which the URL was read; "": this one
    # The folder in which `embedded:` is looked up on that host.
    meeting: Path | None = field(default=None, repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the form of a URL without touching the network. Raises InvalidOptionError."""
        scheme = server_url.check_url(url)
        return cls(url, machine=socket.gethostname(), meeting=_meeting_place() if scheme == "embedded" else None)

    def __str__(self) -> str:
        return server_url.redacted(self.url)

    def without_starting(self) -> Address:
        """Return the same address for a reader that starts no engine."""
        return replace(self, starts=False)

    def with_identity(self, identity: Identity) -> Address:
        """Return the same address with this login. Raises InvalidOptionError if the URL has a login, or needs none."""
        if self.is_embedded:
            raise InvalidOptionError(f"url {str(self)!r} takes no login: remove the one {identity}")
        if server_url.has_login(self.url):
            raise InvalidOptionError(f"url {str(self)!r} holds a login in addition to the one {identity}: give it once")
        return replace(self, identity=identity)

    @property
    def login(self) -> str:
        """Origin of the login, for messages."""
        return "of the url" if self.identity is None else str(self.identity)

    @property
    def is_embedded(self) -> bool:
        """Whether this is the bundled engine of a machine."""
        return self.url.startswith(EMBEDDED)

    @property
    def asks_sentinels(self) -> bool:
        return self.url.startswith(server_url.SENTINEL)

    @property
    def is_cluster(self) -> bool:
        return self.url.startswith(server_url.CLUSTER)

    @property
    def nodes(self) -> tuple[server_url.Node, ...]:
        """(host, port) of each server in the URL: sentinels, cluster nodes, or the one server."""
        return server_url.nodes(self.url)

    def node(self, host: str, port: int) -> Address:
        """Return the address of one server of several, with the same login, database, TLS and timeouts."""
        return replace(self, url=server_url.of_node(self.url, (host, port)))

    @property
    def directory(self) -> Path | None:
        """Directory of the bundled engine's data; None if it has none, or the server is another one."""
        path = urlsplit(self.url).path if self.is_embedded else ""
        return Path(unquote(path)) if path else None

    @property
    def forgets(self) -> bool:
        """Whether the server loses its data when it ends: the bundled engine without a directory."""
        return self.is_embedded and self.directory is None

    def resolve(self) -> str:
        """Return the URL that redis-py connects to. An `embedded:` engine is located, or started on first use.

        Raises ServerUnreachableError if the engine cannot be started, does not run and is not to be started, or belongs
        to another machine; UnsupportedError for an address of several servers, from which wire.connect selects one.
        """
        if self.asks_sentinels or self.is_cluster:
            raise UnsupportedError(f"{self} names several servers, and this step connects to one: name one server")
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

        directory, query_args = self.directory, dict(parse_qsl(urlsplit(self.url).query))
        idle = float(query_args["idle"]) if "idle" in query_args else embedded.IDLE_SECONDS
        try:
            if self.starts:
                return embedded.locate(directory, idle, query_args.get("fsync"), meeting=self.meeting)
        except embedded.EngineStartError as error:
            raise self._cannot_be_used(error) from error
        url = self._running()
        if url is None:
            raise self._not_running(0 if directory is None else embedded.stored_bytes(directory))
        return url

    @property
    def will_start(self) -> bool:
        """Whether `resolve` starts a bundled engine, because none runs."""
        return self.starts and self.is_embedded and self._running() is None

    def _running(self) -> str | None:
        """Return the URL of the bundled engine, None if it does not run. Raises ServerUnreachableError."""
        from spark_streams.engine.launch import embedded

        try:
            return embedded.find(self.directory, meeting=self.meeting)
        except embedded.EngineStartError as error:
            raise self._cannot_be_used(error) from error

    def _cannot_be_used(self, error: Exception) -> ServerUnreachableError:
        return ServerUnreachableError(f"the bundled engine at {self} cannot be used: {error}", passes=False)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the URL was read on another machine and names a server of that machine only."""
        return self.machine not in ("", socket.gethostname()) and self._is_of_one_machine()

    def _is_of_one_machine(self) -> bool:
        hosts = [host for host, _ in self.nodes]
        return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)

    def machine_hint(self) -> str:
        """Return a hint if an unreachable address names a different server on each machine, else ""."""
        if not self.is_elsewhere:
            return ""
        this_machine = socket.gethostname()
        return (
            f" (on machine {this_machine!r}; the driver is on {self.machine!r}, and this address is each machine's own)"
        )

    def _not_running(self, stored_bytes: int) -> ServerUnreachableError:
        """Return the error for an engine that does not run. stored_bytes: size of the data that it would load."""
        state = f"its streams are on disk ({stored_bytes:,} bytes)" if stored_bytes else "and it has no stored streams"
        url_option = "" if self.url == EMBEDDED else f" --url '{self}'"
        remedy = f"a query or `rstream url --start{url_option}` starts one"
        alternative = "" if stored_bytes else "; for another server set url (or RSTREAM_URL)"
        return ServerUnreachableError(
            f"no bundled engine is running at {self}, {state}; {remedy}{alternative}", passes=False
        )


def _meeting_place() -> Path:
    from spark_streams.engine.launch import embedded

    return embedded.meeting_place()


# -- the socket of a bundled engine, as it was when a connection to the engine was made --------------------------------

# A logout and a cleaning of /tmp remove the folder of the socket. The engine then ends (engine.server.event_loop), and
# its streams with it, if no directory keeps them. The next process starts another, empty one under the same name. So a
# connection that is lost tells whether the socket is still the same, and the query does not go on in another engine.


class EngineSocket(NamedTuple):
    path: Path  # of the socket
    file: tuple[int, int] | None  # its device and inode

    @classmethod
    def of(cls, address: Address, url: str) -> Self | None:
        """Return the socket of a connection; None if the server is no bundled engine. url: what it is connected to."""
        if not address.is_embedded:
            return None
        path = Path(unquote(urlsplit(url).path))
        return cls(path, _inode(path))

    def removed(self, address: Address) -> ServerUnreachableError | None:
        """Return the final error if the engine's streams are gone with its folder; None if it may be connected to
        again."""
        directory = address.directory
        if directory is None and _inode(self.path) != self.file:
            what, remedy = f"socket {self.path}", "Use url embedded:///directory, which keeps streams"
        elif directory is not None and not directory.exists():
            what, remedy = f"directory {directory}", "Restore the directory, or name another one"
        else:
            return None
        return ServerUnreachableError(
            f"lost the bundled engine at {address}: its {what} is gone. The engine was stopped, or a logout or a "
            f"cleaning of temporary files has removed the folder. Its streams are gone with it. {remedy}",
            passes=False,
        )


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# -- limits on option values, set in the environment of a driver whose users are not its operators ---------------------

#     variable                     limits                                                     an entry of its list
#     RSTREAM_ALLOW_HOSTS          servers, sentinels, cluster nodes and sockets of `url`     host, host:port, *.domain,
#                                                                                             unix:///path
#     RSTREAM_ALLOW_FILES          `passwordFile`, `archivePath`, the ssl_… files of `url`    file, or folder of files
#     RSTREAM_ALLOW_PROVIDERS      `credentialProvider`, `redrive.transform`, `--transform`   module:function
#     RSTREAM_ALLOW_EMBEDDED       `embedded:`                                                embedded:, or folder
#
# A list is separated by commas. An empty variable refuses all values of its kind; an unset variable limits nothing.
# Paths are compared with links and `..` resolved, and URLs as redis-py reads them.

HOSTS, FILES = "RSTREAM_ALLOW_HOSTS", "RSTREAM_ALLOW_FILES"
PROVIDERS, EMBEDDED_ENGINES = "RSTREAM_ALLOW_PROVIDERS", "RSTREAM_ALLOW_EMBEDDED"
_UNIX = "unix://"
_FILES_OF_URL = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path")

Named = tuple[str, str, str]  # variable that limits it, description, value


def check_server(address: Address) -> None:
    """Refuse a server that is not in the environment's lists. Raises NotAllowedError."""
    if address.is_embedded:
        folder = address.directory
        _check_listed((EMBEDDED_ENGINES, "the bundled engine at", EMBEDDED if folder is None else str(folder)))
    elif HOSTS in os.environ or FILES in os.environ:
        for named in _of_url(address):
            _check_listed(named)


def check_file(option: str, path: str) -> None:
    """Refuse a path that is not in the environment's list. Raises NotAllowedError."""
    _check_listed((FILES, option, path))


def check_function(option: str, name: str) -> None:
    """Refuse a function (module:function) that is not in the environment's list. Raises NotAllowedError."""
    _check_listed((PROVIDERS, option, name))


def check_identity(identity: Identity) -> None:
    """Refuse a file or a function that is not in the environment's lists. Raises NotAllowedError."""
    if identity.password_file:
        _check_listed((FILES, "passwordFile", identity.password_file))
    if identity.provider:
        check_function("credentialProvider", identity.provider)


def _of_url(address: Address) -> Iterator[Named]:
    """Yield hosts, sockets and files, as redis-py reads them from the URL of each server of the address."""
    from spark_streams.connector.wire.sockets import parse_server_url

    one_by_one = server_url.of_sentinel if address.asks_sentinels else server_url.of_node
    names_several = address.asks_sentinels or address.is_cluster
    for url in [one_by_one(address.url, node) for node in address.nodes] if names_several else [address.url]:
        try:
            parts = parse_server_url(url)
        except (ValueError, TypeError) as error:
            raise InvalidOptionError(f"url {str(address)!r} cannot be read: {error}") from None
        if url.startswith(_UNIX):
            yield HOSTS, "socket", f"{_UNIX}{os.path.normpath(parts.get('path', ''))}"
        else:
            host, port = parts.get("host", "localhost"), parts.get("port", 6379)
            yield HOSTS, "host", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for name in _FILES_OF_URL:
            if name in parts:
                yield FILES, name, parts[name]


def _check_listed(named: Named) -> None:
    variable, description, value = named
    listed = os.environ.get(variable)
    if listed is None or any(_LISTS[variable](value, entry.strip()) for entry in listed.split(",") if entry.strip()):
        return
    raise NotAllowedError(
        f"{description} {value} is refused: {variable}, in the environment of this Spark driver, does not list it; use "
        "one that is listed, or ask the operator of the driver to add it"
    )


def _is_host(value: str, entry: str) -> bool:
    if value.startswith(_UNIX) and entry.startswith(_UNIX):
        return _is_within(value.removeprefix(_UNIX), entry.removeprefix(_UNIX))
    requested, allowed = server_url.host_and_port(value.casefold()), server_url.host_and_port(entry.casefold())
    if requested is None or allowed is None or allowed[1] not in (None, requested[1]):
        return False
    host, pattern = requested[0], allowed[0]
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _is_within(value: str, entry: str) -> bool:
    """Whether a path is this entry or below it. A URI is not a path of this machine."""
    if "://" in value:
        return False
    try:
        path, allowed = (Path(os.path.realpath(text)) for text in (value, entry))
    except ValueError:  # a path with a NUL in it
        return False
    return Path(entry).is_absolute() and path.is_relative_to(allowed)


def _is_engine(value: str, entry: str) -> bool:
    if EMBEDDED in (value, entry):
        return value == entry
    return _is_within(value, entry)


_LISTS: dict[str, Callable[[str, str], bool]] = {
    HOSTS: _is_host,
    FILES: _is_within,
    PROVIDERS: operator.eq,
    EMBEDDED_ENGINES: _is_engine,
}
