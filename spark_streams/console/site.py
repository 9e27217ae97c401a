"""What all pages of the console share: the server, the templates, and the parts of a request."""

from __future__ import annotations

import asyncio
import glob
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

from spark_streams._version import __version__
from spark_streams.console.access import Session, Signer, Users
from spark_streams.console.actions import shell_line, with_options
from spark_streams.console.changes import Changes
from spark_streams.console.live import Live
from spark_streams.deadletter.envelope import raw
from spark_streams.errors import OptionError
from spark_streams.model.numbers import parse_number
from spark_streams.model.printable import printable_lines
from spark_streams.model.times import from_milliseconds
from spark_streams.monitor.report.rendering import PACKAGE, environment
from spark_streams.monitor.report.svg import draw, sparkline
from spark_streams.monitor.terminal.units import counted, duration, rate, short
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server

T = TypeVar("T")
PER_PAGE = 100  # rows of a table


def key_of(name: str) -> str | bytes:
    """Return a name for the server: as bytes if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return raw(name)
    return name


def link(path: str, **parameters: object) -> str:
    """Return a path of the console with these parameters; those that are empty are left out."""
    pairs = [
        (name, value if isinstance(value, str) else str(value))
        for name, values in parameters.items()
        for value in (values if isinstance(values, list | tuple) else [values])
        if value not in (None, "")
    ]
    return f"{path}?{urlencode(pairs, errors='surrogateescape')}" if pairs else path


@dataclass(frozen=True)
class Pages:
    """One page of a list. number: from 1 on; count: number of pages; total: of all rows."""

    number: int
    count: int
    total: int

    @classmethod
    def select(cls, rows: Sequence[T], wanted: str) -> tuple[Pages, Sequence[T]]:
        """Return the page that a request wants, and its rows."""
        count = max(1, -(-len(rows) // PER_PAGE))
        number = min(max(1, parse_number(wanted, 1_000_000) or 1), count)
        return cls(number, count, len(rows)), rows[(number - 1) * PER_PAGE : number * PER_PAGE]


MAX_BODY = 4 << 20  # bytes of a form
FIXED = "fixed"  # the parameter of a form that has values which a browser would change: encoded as in an address


def _parse(text: str) -> list[tuple[str, str]]:
    """Raises OptionError."""
    try:
        return parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=20_000)
    except ValueError as error:
        raise OptionError(f"the parameters of this address or form are not UTF-8, or too many: {error}") from None


def _with_fixed(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if name == FIXED:
            yield from _parse(value)
        else:
            yield name, value


def fixed(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the value of the parameter FIXED with these pairs. It is ASCII without line ends."""
    return urlencode(list(pairs), errors="surrogateescape")


@dataclass(frozen=True)
class Parameters:
    """Parameters of a request: of its address, or of a form."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of_query(cls, request: Request) -> Parameters:
        """Return the parameters of the address."""
        return cls(tuple(_with_fixed(_parse(request.scope["query_string"].decode("latin-1")))))

    @classmethod
    async def of_form(cls, request: Request) -> Parameters:
        """Return the parameters of a form that the browser sends in the body."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise OptionError(f"the form is larger than {MAX_BODY:,} bytes")
        pairs = _parse(body.decode("latin-1"))
        # Browsers write line ends of all values as CR LF.
        return cls(tuple(_with_fixed((name, value.replace("\r\n", "\n")) for name, value in pairs)))

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a name."""
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a name."""
        return [value for key, value in self.pairs if key == name]


def _templates() -> Environment:
    templates = environment("spark_streams.console", PACKAGE)
    templates.filters.update(rate=rate, counted=counted, bytes=_bytes, clock=_clock, since=_since)
    templates.globals.update(link=link, glob_escape=glob.escape, fixed=fixed, draw=draw, sparkline=sparkline)
    return templates


def _bytes(size: int) -> str:
    text = short(size)
    return f"{text[:-1]} {text[-1]}B" if size >= 1000 else f"{size} B"


def _clock(at_ms: float) -> str:
    return from_milliseconds(round(at_ms)).strftime("%Y-%m-%d %H:%M:%S")


def _since(at_ms: float) -> str:
    return duration(max(0, time.time() * 1000 - at_ms))


@dataclass(frozen=True)
class Site:
    """The console. is_writable: whether it makes changes; logs: of queries; url: as commands name the server, empty if
    they need no name; login_turn: held while a password is checked."""

    address: Address
    live: Live
    changes: Changes
    signer: Signer
    users: Users
    is_writable: bool
    is_tls: bool = False
    logs: tuple[Path, ...] = ()
    url: str = ""
    login_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    templates: Environment = field(default_factory=_templates)

    async def read(self, function: Callable[[Server], T]) -> T:
        """Call the function with a connection to the server, in a thread. Raises RStreamError."""

        def call() -> T:
            with connect(self.address) as server:
                return function(server)

        return await asyncio.to_thread(call)

    async def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page."""
        session: Session | None = request.scope.get("session")
        view = await self.live.view() if session is not None else None
        markup = self.templates.get_template(template).render(
            site=self,
            path=request.url.path,
            session=session,
            view=view,
            version=__version__,
            **values,
        )
        return HTMLResponse(printable_lines(markup), status)

    @staticmethod
    def is_live(request: Request) -> bool:
        """Whether the script of a page asks for its live sections only: these need no request to the server."""
        return request.headers.get("x-live") == "1"

    def command(self, arguments: Sequence[str]) -> str:
        """Return a command of `rstream` as a line for a shell, for this console's server."""
        return shell_line(with_options(arguments, "--url", self.url) if self.url else arguments)
