"""How a request comes in: the connection, the bounds of all that it may ask for, and its parameters.

uvicorn's own settings bound neither connections that send nothing nor unfinished requests. A request has some seconds
from its first byte to its last. If there are too many connections, the oldest one of those that still wait for a
request is closed, so programs that only connect shut out nobody.

A parameter without a line in PARAMETERS does not reach a page: Parameters leaves it out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_to_bytes, urlencode

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import OptionError

# A connection.
CONNECTIONS = 200  # at once
REQUEST_SECONDS = 20.0  # for a whole request from its first byte to its last
RESPONSE_SECONDS = 60.0  # for which a browser may leave a page unread
HEAD_BYTES = 32 << 10  # of a request's first line and headers
EVENTS = 150  # streams of events at once: each page that is open has one, and each takes a connection

# A form.
FORM_BYTES = 1 << 20
FIELDS = 2_000  # of a form or an address, with those that are within a field

# Work.
DRY_RUNS = 2  # at once; the page Doctor is one
CHANGES = 4  # at once
THREADS = 2  # of a user at once, in which pages read
COMMAND_BYTES = 96 << 10  # of all words: Linux takes 128 kB in one, and a form with the command ten times as much

NAME_BYTES = 1_024  # of the name of a stream, a group or a consumer
LONG_TEXT = 5_000  # characters of a text that a command prints
USER_CHARACTERS = 320  # of a user whom a proxy names: an e-mail address, or a subject with its issuer
EDITABLE = 20_000  # characters of a value that a form can change
EDITABLE_FIELDS = 500  # of an entry
NEW_FIELDS = 20  # of an entry, in a form
EDITABLE_BYTES = 768 << 10  # of all values that one form can change, as a browser encodes them
_SHORT, _TEXT = 64, 2_048
_VALUE = 4 * EDITABLE  # UTF-8


class Bound(NamedTuple):
    """size: bytes of a value; times: how often the parameter may occur."""

    size: int
    times: int = 1


# The parameters of all pages and forms. A name that ends with a dot is followed by a number.
PARAMETERS = {
    **dict.fromkeys(("name", "group", "from", "to", "consumer", "parking"), Bound(NAME_BYTES)),
    **dict.fromkeys(("stream", "names", "allow"), Bound(NAME_BYTES, 20)),
    **dict.fromkeys(("find", "value", "where", "token"), Bound(_TEXT)),
    # Filters of dead letters, and the page of a list.
    **dict.fromkeys(("reason", "stage", "error", "field"), Bound(_TEXT, 20)),
    **dict.fromkeys(("older", "newer", "first-id", "last-id", "own", "page", "at", "after"), Bound(_SHORT)),
    "id": Bound(_SHORT, 100),
    # A change, and the one that a dry run has shown.
    **dict.fromkeys(("action", "letter", "again", "idle", "limit", "rate", "max-redrives"), Bound(_SHORT)),
    **dict.fromkeys(("all", "even-active", "released"), Bound(_SHORT)),
    **dict.fromkeys(("set", "unset"), Bound(COMMAND_BYTES, EDITABLE_FIELDS)),
    "back": Bound(8 << 10),
    "arguments": Bound(6 * COMMAND_BYTES),
    # Fields of an entry.
    "new.name": Bound(_TEXT, NEW_FIELDS),
    "new.value": Bound(_VALUE, NEW_FIELDS),
    "value.": Bound(_VALUE),
    "remove.": Bound(_SHORT),
}


def is_known(parameter: str) -> bool:
    """Whether a page has this parameter."""
    return _plain(parameter) in PARAMETERS


def bound_of(parameter: str) -> Bound:
    """Return the bound of a parameter. Raises KeyError if it has none."""
    return PARAMETERS[_plain(parameter)]


def _plain(parameter: str) -> str:
    return parameter.rstrip("0123456789") if parameter.startswith(("value.", "remove.")) else parameter


_UNFINISHED = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request has not arrived


class BrowserGoneError(HTTPException):
    """Nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__(499)


class BrowserConnection(H11Protocol):
    """A connection."""

    _begun = 0.0
    _request_end: asyncio.TimerHandle | None = None
    _response_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._begun = self.loop.time()
        if not self._has_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._request_end = _cancel(self._request_end)
        self._response_end = _cancel(self._response_end)
        if self.transport is not None:  # there was room for it
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._response_end = self.loop.call_later(RESPONSE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._response_end = _cancel(self._response_end)

    @property
    def is_unfinished(self) -> bool:
        """Whether the request, or the next one, has not arrived."""
        return self.conn.their_state in _UNFINISHED

    def _has_room(self) -> bool:
        """Whether there may be one more connection. An unfinished one is closed for it."""
        others = [other for other in self.connections if isinstance(other, BrowserConnection)]
        if len(others) < CONNECTIONS:
            return True
        unfinished = [other for other in others if other.is_unfinished]
        if unfinished:
            oldest = min(unfinished, key=lambda other: other._begun)
            self.connections.discard(oldest)
            oldest.transport.abort()
        return bool(unfinished)

    def _watch_request(self) -> None:
        """Close the connection if its request does not arrive in time. Bytes that arrive one by one are no excuse."""
        if not self.is_unfinished:
            self._request_end = _cancel(self._request_end)
        elif self._request_end is None:
            self._request_end = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel the timer, and return None for its place."""
    if timer is not None:
        timer.cancel()
    return None


FIXED = "fixed"  # the parameter of a form that has values which a browser would change: encoded as in an address
_LONGEST_NAME = 300  # characters of an encoded name: no known one is as long
_PIECE = 32 << 10  # bytes that are decoded at once
_LONGER = 6  # times: an encoded value is at most so much longer, also if its line ends are CR LF


def fixed(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the value of the parameter FIXED with these pairs. It is ASCII without line ends."""
    return urlencode(list(pairs), errors="surrogateescape")


def link(path: str, **parameters: object) -> str:
    """Return a path of the console with these parameters; those that are empty are left out."""
    pairs = [
        (name, value if isinstance(value, str) else str(value))
        for name, values in parameters.items()
        for value in (values if isinstance(values, list | tuple) and not isinstance(values, StreamId) else [values])
        if value not in (None, "")
    ]
    return f"{path}?{urlencode(pairs, errors='surrogateescape')}" if pairs else path


def encoded_size(value: str) -> int:
    """Return the bytes that a browser's form has for this value."""
    return len(quote_plus(value.replace("\n", "\r\n"), errors="surrogateescape"))


@dataclass(frozen=True)
class Parameters:
    """Names and values in their order. Names that no page has are left out."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, is_form: bool = False) -> Parameters:
        """Parse the parameters of an address or a form. Raises OptionError for one that is over its bound."""
        pairs = tuple(_parse(text, is_form))
        for name, count in Counter(name for name, _ in pairs).items():
            times = bound_of(name).times
            if count > times:
                raise OptionError(f"parameter {name!r} occurs {count:,} times, and the console takes {times}")
        return cls(pairs)

    @classmethod
    def of_query(cls, request: Request) -> Parameters:
        """Return the parameters of the address."""
        return cls.parse(request.scope["query_string"].decode("utf-8", "surrogateescape"))

    @classmethod
    async def of_form(cls, request: Request, size: int) -> Parameters:
        """Return the parameters of a form that the browser sends in the body. size: bytes of the largest one."""
        too_large = HTTPException(413, f"the form is larger than {size:,} bytes")
        if (parse_number(request.headers.get("content-length", "0")) or 0) > size:
            raise too_large
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > size:
                    raise too_large
        except ClientDisconnect:
            raise BrowserGoneError from None
        return cls.parse(body.decode("utf-8", "surrogateescape"), is_form=True)

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a name."""
        return next(iter(self.all(name)), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a name, which has a bound."""
        bound_of(name)
        return [value for key, value in self.pairs if key == name]


def _parse(text: str, is_form: bool) -> Iterator[tuple[str, str]]:
    """Yield the parameters, and those within FIXED. Browsers write line ends of a form's values as CR LF."""
    if text.count("&") + text.count("%26") >= FIELDS:
        _require_few(text)
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if name == FIXED:
            yield from _decoded(_unquoted(value).split("&"))
        else:
            yield from _decoded([part], "\r\n" if is_form else "\n")


def _require_few(text: str) -> None:
    """Raise OptionError if there are too many parameters. One within FIXED ends with an encoded `&`."""
    parts = text.split("&", FIELDS)
    if len(parts) + sum(part.count("%26") for part in parts if part.startswith(f"{FIXED}=")) > FIELDS:
        raise OptionError(
            f"the console accepts at most {FIELDS:,} parameters in an address or form, and this one has more. Select "
            "fewer entries, or use the command line"
        )


def _decoded(parts: Iterable[str], line_end: str = "\n") -> Iterator[tuple[str, str]]:
    """Yield the parameters that pages have. Raises OptionError for one that is too long."""
    for part in parts:
        encoded_name, _, encoded = part.partition("=")
        name = _unquoted(encoded_name[:_LONGEST_NAME])
        if not is_known(name):
            continue
        size = bound_of(name).size
        value = _unquoted(encoded).replace(line_end, "\n") if len(encoded) <= _LONGER * size else None
        if value is None or len(raw(value)) > size:
            raise OptionError(
                f"parameter {name!r} is too long. The console accepts at most {size:,} bytes. Use the command line for "
                "longer values"
            )
        yield name, value


def _unquoted(text: str) -> str:
    """Return the text of an encoded one. It is decoded in pieces, because escapes take a hundred times their memory."""
    encoded, decoded, begin = raw(text).replace(b"+", b" "), bytearray(), 0
    while begin < len(encoded):
        end = begin + _PIECE
        if end < len(encoded) and (cut := encoded.rfind(b"%", end - 2, end)) >= 0:
            end = cut
        decoded += unquote_to_bytes(encoded[begin:end])
        begin = end
    return decoded.decode("utf-8", "surrogateescape")
