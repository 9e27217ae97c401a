"""Parameters of a request: of its address, or of a form. Each has a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from spark_streams.console.bounds import FIELDS, PARAMETERS, bound_of
from spark_streams.deadletter.envelope import raw
from spark_streams.errors import OptionError

FIXED = "fixed"  # the parameter of a form that has values which a browser would change: encoded as in an address


def fixed(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the value of the parameter FIXED with these pairs. It is ASCII without line ends."""
    return urlencode(list(pairs), errors="surrogateescape")


@dataclass(frozen=True)
class Parameters:
    """Names and values in their order. Names that no page has are left out."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, is_form: bool = False) -> Parameters:
        """Parse the parameters of an address or a form. Raises OptionError for one that is over its bound."""
        pairs = [pair for pair in _expanded(text, is_form) if bound_of(pair[0]) is not None]
        for name, count in Counter(name for name, _ in pairs).items():
            bound = bound_of(name)
            if bound is not None and count > bound.times:
                raise OptionError(f"parameter {name!r} occurs {count:,} times, and the console takes {bound.times}")
        for name, value in pairs:
            bound = bound_of(name)
            if bound is not None and len(raw(value)) > bound.size:
                raise OptionError(
                    f"parameter {name!r} is longer than {bound.size:,} bytes, and the console takes no longer one; use "
                    "the command line"
                )
        return cls(tuple(pairs))

    @classmethod
    def of_query(cls, request: Request) -> Parameters:
        """Return the parameters of the address."""
        return cls.parse(request.scope["query_string"].decode("utf-8", "surrogateescape"))

    @classmethod
    async def of_form(cls, request: Request, size: int) -> Parameters:
        """Return the parameters of a form that the browser sends in the body. size: bytes of the largest one."""
        too_large = HTTPException(413, f"the form is larger than {size:,} bytes")
        if int(request.headers.get("content-length", "0")) > size:
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
        if bound_of(name) is None:
            raise KeyError(f"{name} has no bound; known are {', '.join(PARAMETERS)}")
        return [value for key, value in self.pairs if key == name]


def _expanded(text: str, is_form: bool) -> Iterator[tuple[str, str]]:
    """Yield the parameters, and those within FIXED. Browsers write line ends of a form's values as CR LF."""
    pairs = _parse(text, FIELDS)
    left = FIELDS - len(pairs)
    for name, value in pairs:
        if name == FIXED:
            within = _parse(value, left)
            left -= len(within)
            yield from within
        else:
            yield name, value.replace("\r\n", "\n") if is_form else value


def _parse(text: str, most: int) -> list[tuple[str, str]]:
    if text.count("&") >= most:
        raise OptionError(f"this address or form has more than {FIELDS:,} parameters, and the console takes no more")
    return parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
