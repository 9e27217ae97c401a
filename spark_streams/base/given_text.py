"""Texts that a user gives: NAME=VALUE, the first line of a file with a password, durations (`15m`) and moments
(`2026-01-31T08:00`); and the intervals of an idle query."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from spark_streams.base.numbers import parse_number

_NAME = re.compile(r"((?:\\[\\=]|\\(?![\\=])|[^\\=])*)=(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\=])")
_MUST_ESCAPE = re.compile(r"=|\\(?=[\\=]|$)")


def parse_assignment(text: str) -> tuple[str, str] | None:
    r"""Return name and value; None if the text has no equals sign that ends a name.

    In the name, `\=` is an equals sign and `\\` a backslash.
    """
    match = _NAME.fullmatch(text)
    return None if match is None else (_ESCAPED.sub(r"\1", match[1]), match[2])


def assignment(name: str, value: str) -> str:
    """Return the text that `parse_assignment` reads as this name and value."""
    escaped = _MUST_ESCAPE.sub(lambda match: "\\" + match[0], name)
    return f"{escaped}={value}"


# A colon behind `scheme://` that is not before a port.
_LOGIN = re.compile(r"[^:/?#]+://[^/?#\[]*?(?::|%3[Aa])(?!\d*(?:[/?#]|$))")


def without_login(uri: str) -> str:
    """Return only the scheme of a URI that has a login (`s3://KEY:SECRET@bucket`), any other text as it is."""
    return f"{uri.partition('://')[0]}://…" if _LOGIN.match(uri) else uri


LONGEST_LINE = 16 << 10  # bytes; tokens of cloud providers have some thousands


def first_line(file: str | Path) -> bytes:
    """Return the first line without its end, and read no more than that; empty if the file is. Raises OSError, and
    ValueError if the line is too long."""
    with open(file, "rb") as opened:
        line = opened.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ValueError(f"its first line has more than {LONGEST_LINE:,} bytes")
    return line.splitlines()[0] if line else b""


# At which an idle query asks the server (source.limits has what they mean), in seconds.
PATTERN_INTERVAL = 2.0
PATTERN_INTERVAL_EACH = 1e-4
IDLE_CHECK = 5.0
IDLE_CHECK_EACH = 1.0

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration(value: str) -> int:
    """Parse `500ms`, `30s`, `15m`, `2h`, `7d` into milliseconds."""
    match = re.fullmatch(r"([0-9]{1,9}) *(ms|s|m|h|d)", value.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError("must be a duration above 0 with its unit, such as 500ms, 30s, 15m, 2h or 7d")
    return int(match[1]) * _UNITS[match[2]]


def from_milliseconds(number: int) -> datetime.datetime:
    """Return the time of this many milliseconds since the epoch: datetime.fromtimestamp takes a float, and rounds."""
    return EPOCH + datetime.timedelta(milliseconds=number)


def moment(value: str) -> int:
    """Parse milliseconds since the epoch, or an ISO-8601 time (UTC if it names no zone), into the first millisecond at
    or after it: entry IDs have whole ones."""
    plain = value.strip()
    if (number := parse_number(plain)) is not None:
        return number
    try:
        when = datetime.datetime.fromisoformat(plain)
    except ValueError:
        raise ValueError("must be a time as ISO-8601 or in milliseconds since the epoch") from None
    since = (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)) - EPOCH
    if (milliseconds := -(-since // datetime.timedelta(milliseconds=1))) < 0:
        raise ValueError("is before 1970: entry IDs start at 1970")
    return milliseconds
