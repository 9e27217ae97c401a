"""What all pages of the console share: the server, the templates, and the parts of a request.

Other clients choose the names of streams and the reasons of dead letters, so templates escape every value.
"""

from __future__ import annotations

import asyncio
import glob
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from spark_streams.base.given_text import from_milliseconds, moment
from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import is_utf8, printable_lines
from spark_streams.base.units import count, counted, duration, rate, size
from spark_streams.base.version import __version__
from spark_streams.connector.counters import with_heading
from spark_streams.connector.deadletter.envelope import raw, text
from spark_streams.connector.lag.margin import Margin
from spark_streams.connector.operator_commands import shell_line
from spark_streams.connector.schemas.decode_process import FieldDecoders, Shown
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Server
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.cells import DecodedCell, cell
from spark_streams.operations.console.changes import Changes, CommandOutcome
from spark_streams.operations.console.charts import drawing, sparkline
from spark_streams.operations.console.entry_search import LONGEST
from spark_streams.operations.console.incoming import (
    EVENTS,
    LONG_TEXT,
    NAME_BYTES,
    THREADS,
    BrowserGoneError,
    fixed,
    link,
)
from spark_streams.operations.console.live import Live, View
from spark_streams.operations.console.visitors import Access

MAX_ROWS = 200  # of a table; the number of further rows is shown


def environment() -> Environment:
    """Return the environment of the templates."""
    templates = Environment(
        loader=PackageLoader("spark_streams.operations.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        count=count, duration=duration, idle=_idle, rate=rate, counted=counted, bytes=size, clock=_clock, since=_since
    )
    templates.filters["margin"] = _margin
    templates.globals.update(
        MAX_ROWS=MAX_ROWS,
        NAME_BYTES=NAME_BYTES,
        LONG_TEXT=LONG_TEXT,
        LONGEST=LONGEST,
        link=link,
        fixed=fixed,
        counters=with_heading,
        counter_heads=lambda: [f"#{counter.heading}" for counter in with_heading()],
        drawing=drawing,
        sparkline=sparkline,
    )
    return templates


def _idle(ms: int | None) -> str:
    return "–" if ms is None else duration(ms)


def _margin(margin: Margin | None) -> str:
    return "unknown" if margin is None or margin.seconds is None else str(margin)


def _clock(at: float | str) -> str:
    """Return a time, of which the script knows the local one; a text that is no time is returned as it is."""
    try:
        time_of = from_milliseconds(moment(at) if isinstance(at, str) else round(at))
    except (ValueError, OverflowError):
        return str(at)
    utc = time_of.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}Z">{}</time>').format(utc.replace(" ", "T"), utc)


def _since(at_ms: float) -> str:
    return duration(max(0, time.time() * 1000 - at_ms))


T = TypeVar("T")
PER_PAGE = 100  # rows of a table


def key_of(name: str) -> str | bytes:
    """Return a name for the server: as bytes if it is not UTF-8."""
    return name if is_utf8(name) else raw(name)


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


async def _wait_until_gone(request: Request) -> None:
    """Wait until the browser has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class UserThreads:
    """Threads in which pages are made, `THREADS` for each user: those who have not opened the link are one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16 * THREADS)
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, user: str, call: Callable[[], T]) -> T:
        """Return the result of the call. Its place is free when it has ended, even if nobody waits for it any more."""
        places = self._places.setdefault(user, asyncio.Semaphore(THREADS))
        await places.acquire()
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the console has ended before
                loop.call_soon_threadsafe(places.release)

        work = self._pool.submit(call)
        work.add_done_callback(ended)
        return await asyncio.wrap_future(work)


@dataclass(frozen=True)
class Site:
    """The console of one server."""

    address: Address
    live: Live
    changes: Changes
    access: Access
    logs: tuple[Path, ...] = ()  # of queries
    url: str = ""  # as commands name the server, empty if they need no name
    decoders: FieldDecoders | None = None  # of fields that are shown decoded
    allowed: AllowList = field(default_factory=AllowList)
    open_pages: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, EVENTS))
    threads: UserThreads = field(default_factory=UserThreads)
    templates: Environment = field(default_factory=environment)

    async def view(self) -> View:
        """Return what is known of the server, without hidden reasons of dead letters."""
        view, shown = await self.live.view(), self.allowed.envelope_value
        return replace(view, reasons=tuple(replace(one, reason=shown("reason", one.reason)) for one in view.reasons))

    def reason_filter(self, reason: str) -> str:
        """Return the filter for a reason of dead letters; empty if reasons are hidden."""
        return glob.escape(reason) if self.allowed.shows("dl.reason") else ""

    async def read(self, request: Request, function: Callable[[Server], T]) -> T:
        """Call the function with a connection to the server, in a thread of the request. Raises RStreamError."""

        def call() -> T:
            with connect(self.address) as server:
                return function(server)

        return await self.in_thread(request, call)

    async def in_thread(self, request: Request, call: Callable[[], T]) -> T:
        """Return the result of a call in a thread of the request's user. It is not made if the browser goes before."""
        return await self.while_there(request, self.threads.run(request.scope["visitor"].user, call))

    def decoded(self, pairs: Sequence[tuple[bytes, bytes]]) -> list[DecodedCell | None]:
        """Return the decoded values of fields, None for each field that is not decoded, or whose values are hidden. A
        registry may be asked, so this is for `read`."""
        if self.decoders is None:
            return [None] * len(pairs)

        def shown(name: bytes, one: Shown | None) -> DecodedCell | None:
            if one is None or not self.allowed.shows(text(name)):
                return None
            return DecodedCell(cell(raw(text(one.text))), one.reason.removeprefix("not decoded: "))  # as the page says

        return [shown(name, one) for (name, _), one in zip(pairs, self.decoders.page(pairs), strict=True)]

    async def dry_run(self, request: Request, arguments: Sequence[str]) -> CommandOutcome:
        """Return how a command ends that changes nothing. It ends if the browser goes."""
        outcome = await self.while_there(request, self.changes.dry_run(arguments))
        return outcome.shown(self.allowed, arguments)

    async def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page."""
        markup = self.templates.get_template(template).render(
            site=self,
            path=request.scope["path"],
            visitor=request.scope["visitor"],
            view=await self.view(),
            version=__version__,
            **values,
        )
        return HTMLResponse(printable_lines(markup), status)

    @staticmethod
    async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work, which is cancelled if the browser goes. The form was read before. Raises
        BrowserGoneError."""
        task = asyncio.ensure_future(work)
        end = asyncio.ensure_future(_wait_until_gone(request))
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise BrowserGoneError
        finally:
            task.cancel()
            end.cancel()
            await asyncio.gather(task, end, return_exceptions=True)

    @staticmethod
    def is_live(request: Request) -> bool:
        """Whether the script of a page asks for its live sections only: these need no request to the server."""
        return request.headers.get("x-live") == "1"

    def command(self, arguments: Sequence[str]) -> str:
        """Return a command of `rstream` as a line for a shell, for this console's server."""
        return shell_line(with_options(arguments, "--url", self.url) if self.url else arguments)
