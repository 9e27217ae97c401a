"""Parameters of a request: of its address, or of a form. Each has a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_to_bytes, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import OptionError
from spark_streams.operations.console.bounds import FIELDS, bound_of, is_known

FIXED = "fixed"  # the parameter of a form that has values which a browser would change: encoded as in an address
_NAME = 300  # characters of an encoded name: no known one is as long
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
        async for part in request.stream():
            body += part
            if len(body) > size:
                raise too_large
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
        name = _unquoted(encoded_name[:_NAME])
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
