"""What all pages of the console share: the server, the templates, and the parts of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import printable_lines
from spark_streams.base.version import __version__
from spark_streams.connector.admin.streams import Shown
from spark_streams.connector.deadletter.envelope import raw, text
from spark_streams.connector.operator_commands import shell_line
from spark_streams.connector.schemas.shown import FieldDecoders
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.console.access import Session, Signer
from spark_streams.operations.console.actions import with_options
from spark_streams.operations.console.audit import Audit
from spark_streams.operations.console.cells import Decoded, cell
from spark_streams.operations.console.change import Outcome
from spark_streams.operations.console.changes import Changes
from spark_streams.operations.console.live import Live, View
from spark_streams.operations.console.login.attempts import LoginAttempts
from spark_streams.operations.console.login.users import Users
from spark_streams.operations.console.mask import Mask
from spark_streams.operations.console.rendering import environment
from spark_streams.operations.console.request.uploads import Uploads
from spark_streams.operations.console.request.watchers import Watchers

if TYPE_CHECKING:
    from spark_streams.operations.console.login.oidc import Oidc  # the extra oidc has what it imports

T = TypeVar("T")
PER_PAGE = 100  # rows of a table


def key_of(name: str) -> str | bytes:
    """Return a name for the server: as bytes if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return raw(name)
    return name


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


@dataclass(frozen=True)
class Site:
    """The console. is_writable: whether it makes changes; is_https: whether browsers call it by HTTPS; has_proxy:
    whether all requests come through a proxy; logs: of queries; url: as commands name the server, empty if they need
    no name; passwords: threads that check passwords; mask: of values that not all see."""

    address: Address
    live: Live
    changes: Changes
    audit: Audit
    signer: Signer
    users: Users
    is_writable: bool
    is_https: bool = False
    has_proxy: bool = False
    logs: tuple[Path, ...] = ()
    url: str = ""
    attempts: LoginAttempts = field(default_factory=LoginAttempts)
    watchers: Watchers = field(default_factory=Watchers)
    passwords: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 2))
    templates: Environment = field(default_factory=environment)
    decoders: FieldDecoders | None = None
    oidc: Oidc | None = None
    uploads: Uploads = field(default_factory=Uploads)
    mask: Mask = field(default_factory=Mask)

    def mask_of(self, request: Request) -> Mask:
        """Return the mask for the user of this session. Without logins, nobody has a role, and so all have the mask."""
        session: Session | None = request.scope.get("session")
        sees_all = self.needs_login and not self.mask.of_writers and session is not None and session.can_write
        return Mask() if sees_all else self.mask

    async def view(self, request: Request) -> View:
        """Return what is known of the server, as this session sees it."""
        view, mask = await self.live.view(), self.mask_of(request)
        return replace(view, reasons=tuple(replace(one, reason=mask.text(one.reason)) for one in view.reasons))

    @property
    def needs_login(self) -> bool:
        """Whether only users who log in have a session."""
        return bool(self.users) or self.oidc is not None

    async def read(self, function: Callable[[Server], T]) -> T:
        """Call the function with a connection to the server, in a thread. Raises RStreamError."""

        def call() -> T:
            with connect(self.address) as server:
                return function(server)

        return await asyncio.to_thread(call)

    def decoded(self, pairs: Sequence[tuple[bytes, bytes]], mask: Mask) -> list[Decoded | None]:
        """Return the decoded values of fields, None for each field that is not decoded. pairs: not masked. A registry
        may be asked, so this is for `read`."""
        if self.decoders is None:
            return [None] * len(pairs)

        def shown(name: bytes, one: Shown | None) -> Decoded | None:
            if one is None:
                return None
            # The page says "not decoded" before each reason.
            value, reason = (mask.decoded(text(name), part) for part in (text(one.text), one.reason))
            return Decoded(cell(raw(value)), reason.removeprefix("not decoded: "))

        return [shown(name, one) for (name, _), one in zip(pairs, self.decoders.page(pairs), strict=True)]

    async def dry_run(self, request: Request, arguments: Sequence[str]) -> Outcome:
        """Return how a command ends that changes nothing. It ends if the browser goes."""
        outcome = await self.while_there(request, self.changes.dry_run(arguments))
        return self.mask_of(request).outcome(replace(outcome, error=self.uploads.shown(outcome.error)))

    async def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page."""
        session: Session | None = request.scope.get("session")
        view = await self.view(request) if session is not None else None
        markup = self.templates.get_template(template).render(
            site=self,
            path=request.scope["path"],
            session=session,
            can_write=self.is_writable and session is not None and session.can_write,
            view=view,
            version=__version__,
            **values,
        )
        return HTMLResponse(printable_lines(markup), status)

    @staticmethod
    async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work, which is cancelled if the browser goes. The form was read before. Raises
        HTTPException if the browser has gone."""
        task = asyncio.ensure_future(work)
        end = asyncio.ensure_future(_wait_until_gone(request))
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise HTTPException(499, "the browser has gone")
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
        line = shell_line(with_options(arguments, "--url", self.url) if self.url else arguments)
        return self.uploads.shown(line)
