"""What the text of an option means: parsers that give a value or raise ValueError with what would be right.

Pure: text in, values out. `spark_streams.options.table` says which option is read by which parser.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable
from typing import TypeVar

from spark_streams.model.ids import U64_MAX, InvalidStreamId, StreamId
from spark_streams.model.pattern import is_pattern
from spark_streams.options.per_stream import PerStream
from spark_streams.shards.names import MOST

T = TypeVar("T")
MOST_WEIGHT = 100  # of a stream beside the others


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


def shards(value: str) -> int:
    """A number of shards."""
    if count(value) > MOST:
        raise ValueError(f"must be at most {MOST}")
    return count(value)


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


MOST_DELAYS = 16  # so many streams beside each are looked at when a query starts


def delays(value: str) -> tuple[int, ...]:
    """`1m, 10m, 1h`: how long to wait before each further try, in milliseconds."""
    found = tuple(duration(one) for one in value.split(","))
    if len(found) > MOST_DELAYS:
        raise ValueError(f"must be {MOST_DELAYS} durations at the most")
    return found


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
    if not is_pattern(value):
        raise ValueError("is no pattern: it has no *, ? or [; name single streams in option streams")
    return value


def per_stream(one: Callable[[str], T], what: str, otherwise: T, numbers: bool = True) -> Callable[[str], PerStream[T]]:
    """What `one` reads, for every stream, or a JSON object of these by stream or pattern. what: `one` in words;
    otherwise: for streams that the JSON does not name; numbers: whether JSON may give them as numbers."""

    def member(stream: str, given: object) -> T:
        if isinstance(given, bool) or not isinstance(given, str | int if numbers else str):
            raise ValueError(f"of {stream!r} must be {what}")
        try:
            return one(str(given))
        except ValueError as error:
            raise ValueError(f"of {stream!r} {error}") from None

    def parse(value: str) -> PerStream[T]:
        if not value.lstrip().startswith("{"):
            return PerStream(one(value), {})
        try:
            named = json.loads(value, object_pairs_hook=_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not JSON ({error})") from None
        if not named:
            raise ValueError("names no stream")
        return PerStream(otherwise, {stream: member(stream, given) for stream, given in named.items()})

    return parse


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON whose names differ: of two that are alike only one would be heard."""
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ValueError("names a stream twice")
    return named


def weight(value: str) -> int:
    """From 1 to 100."""
    given = count(value)
    if given > MOST_WEIGHT:
        raise ValueError(f"must be a whole number from 1 to {MOST_WEIGHT}")
    return given


def weights(value: str) -> PerStream[int]:
    """JSON of weights by stream or pattern."""
    if not value.lstrip().startswith("{"):
        raise ValueError('must be JSON of weights by stream or pattern, such as {"orders": 3, "audit:*": 1}')
    return per_stream(weight, f"a whole number from 1 to {MOST_WEIGHT}", 1)(value)


_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def size(value: str) -> int:
    """`64mb`, `512kb`, `2gb` or a number of bytes; as Redis counts, 1 kb is 1,024 bytes."""
    found = re.fullmatch(r"([0-9]{1,15}) *(b|kb|mb|gb|)", value.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ValueError("must be a size above 0, such as 64mb, 512kb, 2gb or a number of bytes")
    return int(found[1]) * _SIZES[found[2]]


def positions(otherwise: str, *words: str, missing_seq: int = 0) -> Callable[[str], PerStream[str]]:
    """One of these words (earliest, latest), an id, or JSON of these by stream or pattern: `$` (latest) or an entry id
    as text. otherwise: for streams that the JSON does not name; missing_seq: the sequence number of an id that is given
    without."""
    known = {word: {"latest": "$", "earliest": "0"}[word] for word in words}
    one = f"{', '.join(words)} or an id"

    def position(given: str) -> str:
        plain = given.strip()
        if plain in known:
            return known[plain]
        try:
            return str(StreamId.parse(plain, missing_seq))
        except InvalidStreamId as error:
            raise ValueError(f"must be {one}, or JSON of these by stream ({error})") from None

    return per_stream(position, one, otherwise, numbers=False)
