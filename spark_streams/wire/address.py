"""Where the stream server is: URLs in, addresses out. Pure, but for `embedded:`, which may start the bundled engine.

`redis://`, `rediss://`, `unix://` as redis-py reads them; `embedded:` for the bundled engine of this machine.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from spark_streams.errors import InvalidOptionError, ServerUnreachableError, UnsupportedError

DEFAULT_URL_VARIABLE = "RSTREAM_URL"
EMBEDDED = "embedded:"

_SCHEMES = ("embedded:", "redis://", "rediss://", "unix://")
_LATER = ("redis+cluster://", "redis+sentinel://")
_SECRET_IN_QUERY = re.compile(r"((?:^|[?&])(?:password|pass)=)[^&]*", re.IGNORECASE)
_SECRET_IN_AUTHORITY = re.compile(r"(://[^:/@]*:)[^@]*(@)")


def default_url() -> str:
    """The URL where none is given: `$RSTREAM_URL`, else the bundled engine."""
    return os.environ.get(DEFAULT_URL_VARIABLE) or EMBEDDED


def redacted(url: str) -> str:
    """The URL as it may be shown: a password becomes `***`."""
    return _SECRET_IN_QUERY.sub(r"\1***", _SECRET_IN_AUTHORITY.sub(r"\1***\2", url))


@dataclass(frozen=True)
class Address:
    """A checked server URL. `str()` hides the password, so it may go into plans, logs and errors."""

    url: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Check the form of a URL without touching the network. Raises InvalidOptionError, UnsupportedError."""
        if url.startswith(_LATER):
            scheme = url.split("://", 1)[0]
            raise UnsupportedError(f"{scheme}:// is not available yet; give one server as redis://host:port/db")
        if not url.startswith(_SCHEMES):
            raise InvalidOptionError(
                f"url {redacted(url)!r} is not a server address; write redis://host:port/db, rediss://…, "
                "unix:///path/to.sock or embedded:"
            )
        if url.startswith(("redis://", "rediss://")):
            _check_host_and_port(url)
        elif url.startswith(EMBEDDED):
            _idle_seconds(url)
        return cls(url)

    def __str__(self) -> str:
        return redacted(self.url)

    def resolve(self) -> str:
        """The URL that redis-py connects to; for `embedded:` the engine is found, or started on first use.

        Raises ServerUnreachableError when the engine cannot be started.
        """
        if not self.url.startswith(EMBEDDED):
            return self.url
        from spark_streams.engine import embedded

        parts = urlsplit(self.url)
        directory = Path(unquote(parts.path)) if parts.path else None
        idle = _idle_seconds(self.url)
        try:
            return embedded.locate(directory) if idle is None else embedded.locate(directory, idle=idle)
        except embedded.EngineStartError as error:
            raise ServerUnreachableError(f"the bundled engine at {self} cannot be used: {error}") from error


def _idle_seconds(url: str) -> float | None:
    """`embedded:?idle=30`: the engine ends this many seconds after its last client."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    text = query.pop("idle", [None])[-1]
    if query or parts.netloc:
        raise InvalidOptionError(f"url {url!r}: write embedded:, embedded:///dir or embedded:?idle=SECONDS")
    if text is None:
        return None
    try:
        idle = float(text)
    except ValueError:
        idle = -1.0
    if not 0 < idle < 1e9:
        raise InvalidOptionError(f"url {url!r}: idle={text!r} is not a number of seconds above 0")
    return idle


def _check_host_and_port(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidOptionError(f"url {redacted(url)!r}: {error}; write redis://host:port/db") from None
    if not parts.hostname:
        raise InvalidOptionError(f"url {redacted(url)!r} names no host; write redis://host:port/db")
    database = parts.path.strip("/")
    if database and not database.isdigit():
        raise InvalidOptionError(
            f"url {redacted(url)!r}: the database {database!r} is not a number; write redis://host:port/0"
        )
