"""Parsers of option values. Each returns a value, or raises ValueError that names the valid values.

Pure: text in, values out. `spark_streams.connector.options.table` lists the parser of each option. Options that are
JSON by stream or pattern have one value for each stream (PerStream).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

from spark_streams.base.given_text import duration, without_login
from spark_streams.base.ids import InvalidStreamId, StreamId
from spark_streams.base.pattern import is_pattern, matches
from spark_streams.connector.shards.names import MAX_SHARDS

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class PerStream(Generic[T]):
    """Values per stream. named: by stream name or Redis pattern; otherwise: for streams that match none of them;
    streams: those that the user names, none with a pattern. A name in `named` that is one of them is never a pattern.
    """

    otherwise: T
    named: Mapping[str, T]
    streams: frozenset[str] = frozenset()

    def value_for(self, stream: str) -> T:
        """Return the value for the stream's name, else for the first matching pattern, else `otherwise`."""
        if stream in self.named:
            return self.named[stream]
        for name, value in self.named.items():
            if self._matches(name, stream):
                return value
        return self.otherwise

    def _matches(self, name: str, stream: str) -> bool:
        return name not in self.streams and is_pattern(name) and matches(name, stream)

    def covers(self, stream: str) -> bool:
        """Return whether the option sets a value for this stream: by name, by pattern, or one value for all streams."""
        return not self.named or len(self.unmatched((stream,))) < len(self.named)

    def map(self, change: Callable[[T], U], otherwise: U) -> PerStream[U]:
        """Return the same names with converted values."""
        return PerStream(otherwise, {name: change(value) for name, value in self.named.items()}, self.streams)

    def for_shards(
        self, shards: Mapping[str, Sequence[str]], share: Callable[[T, int], T] = lambda value, _count: value
    ) -> PerStream[T]:
        """Return the values for shards. A shard that is not named itself gets the value of its stream.

        shards: their names by stream; share: returns a shard's value from the stream's value and the number of shards.
        """
        named: dict[str, T] = {}
        for stream, names in shards.items():
            if self.unmatched((stream,)) != list(self.named):
                named |= dict.fromkeys(names, share(self.value_for(stream), len(names)))
        return PerStream(self.otherwise, named | dict(self.named), self.streams)

    def unmatched(self, streams: tuple[str, ...]) -> list[str]:
        """Return the names that match none of these streams."""
        return [
            name
            for name in self.named
            if name not in streams and not any(self._matches(name, stream) for stream in streams)
        ]


def text(value: str) -> str:
    """Parse any text except the empty one."""
    if not value:
        raise ValueError("must not be empty")
    return value


def location(value: str) -> str:
    """Parse the path of a folder, or a URI of another file system. A file URI becomes its path.

    What reads the folder takes the result and decodes nothing, so an allow list compares the folder that is read.
    """
    if "://" not in text(value):
        return value
    if without_login(value) != value:
        raise ValueError("has a login: give it by the environment or by a role")
    parts = urlsplit(value)
    if parts.scheme != "file":
        return value
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise ValueError("must be a path, or a URI like file:///folder without host, ? and #")
    return unquote(parts.path, errors="surrogateescape")


def count(value: str) -> int:
    """Parse a whole number above 0."""
    plain = value.strip()
    number = int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 19 else 0
    if number < 1:
        raise ValueError("must be a whole number above 0 of at most 18 digits")
    return number


def number(value: str) -> int:
    """Parse a whole number or 0."""
    return 0 if value.strip() == "0" else count(value)


def shards(value: str) -> int:
    """Parse a number of shards."""
    if count(value) > MAX_SHARDS:
        raise ValueError(f"must be at most {MAX_SHARDS}")
    return count(value)


def query_id(value: str) -> str:
    """Parse the ID of a query, a UUID, which is the same in all its runs."""
    try:
        return str(uuid.UUID(value.strip()))
    except ValueError:
        raise ValueError("must be the ID of a query, from the file `metadata` of its checkpoint") from None


def flag(value: str) -> bool:
    """Parse true or false, in upper or lower case."""
    flags = {"true": True, "false": False}
    if value.lower() not in flags:
        raise ValueError("must be true or false")
    return flags[value.lower()]


def flag_or_auto(value: str) -> bool | None:
    """Parse true, false, or auto, which leaves the decision to the program: None."""
    flags = {"true": True, "false": False, "auto": None}
    if value.lower() not in flags:
        raise ValueError("must be true, false or auto")
    return flags[value.lower()]


def one_of(*values: str) -> Callable[[str], str]:
    """Return a parser for one of these words, in upper or lower case."""

    def parse(value: str) -> str:
        for choice in values:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(f"must be {'one of ' if len(values) > 1 else ''}{', '.join(values)}")

    return parse


def null_values(value: str) -> tuple[bytes, ...]:
    """Parse `NA,null,-`, or a JSON list if a text contains a comma. The empty text is one of them if it is listed."""
    texts = _json_list(value, "texts") if value.startswith("[") else value.split(",")
    return tuple(text.encode("utf-8", "surrogateescape") for text in texts)


def _json_list(value: str, of: str) -> list[str]:
    try:
        texts: list[str] = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not a JSON list of {of} ({error})") from None
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"must be a JSON list of {of}")
    return texts


def streams(value: str) -> tuple[str, ...]:
    """Parse `orders, returns`, or a JSON list if a name contains a comma."""
    is_json = value.lstrip().startswith("[")
    names = _json_list(value, "stream names") if is_json else [name.strip() for name in value.split(",")]
    if not names or not all(names):
        raise ValueError("must name at least one stream, and no empty one")
    if len(set(names)) < len(names):
        raise ValueError("names a stream twice")
    return tuple(names)


def function(value: str) -> str:
    """Parse `module:function`."""
    plain = value.strip()
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", plain):
        raise ValueError("must be module:function, such as mycompany.redis_login:provider")
    return plain


MOST_DELAYS = 16  # a query checks this many retry streams per stream when it starts


def delays(value: str) -> tuple[int, ...]:
    """Parse `1m, 10m, 1h`, the delays before each retry, into milliseconds."""
    durations = tuple(duration(part) for part in value.split(","))
    if len(durations) > MOST_DELAYS:
        raise ValueError(f"must be at most {MOST_DELAYS} durations")
    return durations


def entry_id(value: str) -> str:
    """Parse `1526919030474-0`. Without the second number, it is the first ID of that millisecond."""
    try:
        return str(StreamId.parse(value.strip()))
    except InvalidStreamId as error:
        raise ValueError(f"is {error}") from None


def glob(value: str) -> str:
    """Parse a Redis pattern (`*`, `?`, `[a-z]`, `\\` before a literal character)."""
    if not is_pattern(text(value)):
        raise ValueError("is not a pattern: it has no *, ? or [; name single streams in option streams")
    return value


def per_stream(
    parse_value: Callable[[str], T], description: str, otherwise: T, numbers: bool = True
) -> Callable[[str], PerStream[T]]:
    """Return a parser for one value for all streams, or a JSON object of values by stream or pattern.

    parse_value: parser of one value; description: of valid values, for messages; otherwise: for streams that the JSON
    does not name; numbers: whether values in JSON may be numbers.
    """

    def member(stream: str, json_value: object) -> T:
        if isinstance(json_value, bool) or not isinstance(json_value, str | int if numbers else str):
            raise ValueError(f"of {stream!r} must be {description}")
        try:
            return parse_value(str(json_value))
        except ValueError as error:
            raise ValueError(f"of {stream!r} {error}") from None

    def parse(value: str) -> PerStream[T]:
        if not value.lstrip().startswith("{"):
            return PerStream(parse_value(value), {})
        try:
            named = json.loads(value, object_pairs_hook=_unique_names)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not JSON ({error})") from None
        if not named:
            raise ValueError("names no stream")
        return PerStream(otherwise, {stream: member(stream, json_value) for stream, json_value in named.items()})

    return parse


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dict. Raises ValueError for a name that occurs twice, which dict() would drop."""
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ValueError("names a stream twice")
    return named


_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def size(value: str) -> int:
    """Parse `64mb`, `512kb`, `2gb` or a number of bytes into bytes. As in Redis, 1 kb is 1,024 bytes."""
    match = re.fullmatch(r"([0-9]{1,15}) *(b|kb|mb|gb|)", value.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError("must be a size above 0, such as 64mb, 512kb, 2gb or a number of bytes")
    return int(match[1]) * _SIZES[match[2]]


def positions(otherwise: str, *words: str, missing_seq: int = 0) -> Callable[[str], PerStream[str]]:
    """Return a parser for one of these words (earliest, latest), an entry ID, or JSON of these by stream or pattern.

    A position is `$` (latest) or an entry ID as text. otherwise: for streams that the JSON does not name; missing_seq:
    sequence number of an ID without one.
    """
    positions_by_word = {word: {"latest": "$", "earliest": "0"}[word] for word in words}
    description = f"{', '.join(words)} or an id"

    def position(text: str) -> str:
        plain = text.strip()
        if plain in positions_by_word:
            return positions_by_word[plain]
        try:
            return str(StreamId.parse(plain, missing_seq))
        except InvalidStreamId as error:
            raise ValueError(f"must be {description}, or JSON of these by stream ({error})") from None

    return per_stream(position, description, otherwise, numbers=False)
