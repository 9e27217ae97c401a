"""What the text of an option means: parsers that give a value or raise ValueError with what would be right.

Pure: text in, values out. `spark_streams.option_tables` says which option is read by which parser.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_streams.ids import U64_MAX, InvalidStreamId, StreamId


def text(value: str) -> str:
    """Any text but the empty one."""
    if not value:
        raise ValueError("must not be empty")
    return value


def count(value: str) -> int:
    """A whole number above 0."""
    plain = value.strip()
    number = int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 19 else 0
    if number < 1:
        raise ValueError("must be a whole number above 0 of at most 18 digits")
    return number


def number(value: str) -> int:
    """A whole number, or 0."""
    return 0 if value.strip() == "0" else count(value)


def query_id(value: str) -> str:
    """What Spark calls a query, in all its runs: a UUID."""
    try:
        return str(uuid.UUID(value.strip()))
    except ValueError:
        raise ValueError("must be the id of a query, as file `metadata` of its checkpoint has it") from None


def flag(value: str) -> bool:
    """true or false, in any case."""
    known = {"true": True, "false": False}
    if value.lower() not in known:
        raise ValueError("must be true or false")
    return known[value.lower()]


def one_of(*values: str) -> Callable[[str], str]:
    """One of these, in any case."""

    def parse(value: str) -> str:
        for known in values:
            if value.lower() == known.lower():
                return known
        raise ValueError(f"must be one of {', '.join(values)}")

    return parse


def streams(value: str) -> tuple[str, ...]:
    """`orders, returns`, or a JSON list where a name holds a comma."""
    if value.lstrip().startswith("["):
        try:
            names = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not a JSON list of stream names ({error})") from None
        if not all(isinstance(name, str) for name in names):
            raise ValueError("must be a JSON list of stream names")
    else:
        names = [name.strip() for name in value.split(",")]
    if not names or not all(names):
        raise ValueError("must name at least one stream, and no empty one")
    if len(set(names)) < len(names):
        raise ValueError("names a stream twice")
    return tuple(names)


def function(value: str) -> str:
    """`module:function`."""
    plain = value.strip()
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", plain):
        raise ValueError("must be module:function, such as mycompany.redis_login:provider")
    return plain


_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration(value: str) -> int:
    """`500ms`, `30s`, `15m`, `2h`, `7d` in milliseconds."""
    found = re.fullmatch(r"([0-9]{1,9}) *(ms|s|m|h|d)", value.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ValueError("must be a duration above 0 with its unit, such as 500ms, 30s, 15m, 2h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def entry_id(value: str) -> str:
    """`1526919030474-0`; without the second number, the first of that millisecond."""
    try:
        return str(StreamId.parse(value.strip()))
    except InvalidStreamId as error:
        raise ValueError(f"is {error}") from None


def moment(value: str) -> int:
    """Milliseconds since the epoch, as such or as ISO-8601 (UTC where it names no zone)."""
    plain = value.strip()
    if plain.isascii() and plain.isdigit() and int(plain) <= U64_MAX:
        return int(plain)
    try:
        when = datetime.datetime.fromisoformat(plain)
    except ValueError:
        raise ValueError("must be a time as ISO-8601 or in milliseconds since the epoch") from None
    when = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    milliseconds = (when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError("is before 1970: no entry id is that old")
    return milliseconds


def glob(value: str) -> str:
    """A Redis pattern (`*`, `?`, `[a-z]`, `\\` before a character that stands for itself)."""
    if not value:
        raise ValueError("must not be empty")
    if not re.search(r"[*?\[]", value):
        raise ValueError("is no pattern: it has no *, ? or [; name single streams in option streams")
    return value


@dataclass(frozen=True)
class Positions:
    """A position per stream: `$` (latest), or an entry id as text; `per_stream` overrides `everywhere`."""

    everywhere: str
    per_stream: Mapping[str, str]

    def of(self, stream: str) -> str:
        """Where this stream's position is."""
        return self.per_stream.get(stream, self.everywhere)


def positions(otherwise: str, *words: str, missing_seq: int = 0) -> Callable[[str], Positions]:
    """One of these words (earliest, latest), an id, or JSON of these per stream. otherwise: for streams that the JSON
    does not name; missing_seq: the sequence number of an id that is given without."""
    known = {word: {"latest": "$", "earliest": "0"}[word] for word in words}
    how = f"must be {', '.join(words)}, an id, or JSON of these per stream"

    def position(given: object) -> str:
        if isinstance(given, str) and given in known:
            return known[given]
        if not isinstance(given, str):
            raise ValueError(how)
        try:
            return str(StreamId.parse(given, missing_seq))
        except InvalidStreamId as error:
            raise ValueError(f"{how} ({error})") from None

    def parse(value: str) -> Positions:
        if not value.lstrip().startswith("{"):
            return Positions(position(value.strip()), {})
        try:
            named = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not JSON ({error})") from None
        return Positions(otherwise, {stream: position(one) for stream, one in named.items()})

    return parse
