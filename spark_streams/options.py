"""Every option, once: its name, which side it belongs to, its default, its check and its one-line documentation.

README's tables are printed from here (`python -m spark_streams.options`). Option names are matched without regard to
case, as Spark does. Unknown options are errors: a misspelt option that is silently ignored loses data.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_streams.errors import InvalidOptionError, UnknownOptionError
from spark_streams.ids import InvalidStreamId, StreamId
from spark_streams.wire.address import Address, default_url

# What Spark itself puts among the options of a reader or a writer.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

REQUIRED = object()


@dataclass(frozen=True)
class Option:
    """name: as users type it; parse: text → value, raises ValueError; default: a value, REQUIRED, or a callable."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    shown: str
    doc: str


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _count(value: str) -> int:
    plain = value.strip()
    number = int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 19 else 0
    if number < 1:
        raise ValueError("must be a whole number above 0 of at most 18 digits")
    return number


def _flag(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.lower() not in known:
        raise ValueError("must be true or false")
    return known[value.lower()]


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for known in values:
            if value.lower() == known.lower():
                return known
        raise ValueError(f"must be one of {', '.join(values)}")

    return parse


def _streams(value: str) -> tuple[str, ...]:
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


@dataclass(frozen=True)
class StartingOffsets:
    """Where a new group starts: `latest` ($), `earliest` (0) or after an id; `per_stream` overrides `everywhere`."""

    everywhere: str
    per_stream: Mapping[str, str]

    def of(self, stream: str) -> str:
        """The id argument of XGROUP CREATE for this stream."""
        return self.per_stream.get(stream, self.everywhere)


def _starting_offsets(value: str) -> StartingOffsets:
    def position(text: object) -> str:
        if text == "latest":
            return "$"
        if text == "earliest":
            return "0"
        if not isinstance(text, str):
            raise ValueError("must be earliest, latest, an id, or JSON of these per stream")
        try:
            return str(StreamId.parse(text))
        except InvalidStreamId as error:
            raise ValueError(f"must be earliest, latest, an id, or JSON of these per stream ({error})") from None

    if not value.lstrip().startswith("{"):
        return StartingOffsets(position(value.strip()), {})
    try:
        positions = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error})") from None
    return StartingOffsets("$", {stream: position(text) for stream, text in positions.items()})


_URL = Option(
    "url",
    Address.parse,
    lambda: Address.parse(default_url()),
    "`$RSTREAM_URL`, else `embedded:`",
    "The server: `redis://host:port/db`, `rediss://…`, `unix:///path`, or `embedded:` for the bundled engine.",
)

SOURCE: tuple[Option, ...] = (
    _URL,
    Option("streams", _streams, REQUIRED, "", "The streams to read: names separated by commas, or a JSON list."),
    Option("group", _text, REQUIRED, "", "The consumer group; it is created on first use and keeps the position."),
    Option("consumer", _text, "spark", "`spark`", "This query's name within the group; one running query a name."),
    Option(
        "startingOffsets",
        _starting_offsets,
        StartingOffsets("$", {}),
        "`latest`",
        "Where a new group starts: `earliest`, `latest`, after an id, or JSON of these per stream. "
        "A group that exists goes on where it is.",
    ),
    Option("maxEntriesPerTrigger", _count, None, "all", "The most entries in a micro-batch, shared between streams."),
    Option("entriesPerPartition", _count, 100_000, "`100000`", "About how many entries one task reads."),
    Option(
        "failOnDataLoss",
        _flag,
        True,
        "`true`",
        "Whether entries that were trimmed or deleted before they were read stop the query.",
    ),
    Option(
        "mode",
        _one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        "`PERMISSIVE`",
        "A value that does not fit its column's type: null, drop the entry, or stop.",
    ),
)

SINK: tuple[Option, ...] = (
    _URL,
    Option("stream", _text, REQUIRED, "", "The stream to append to."),
    Option("maxlen", _count, None, "unbounded", "Trim the stream to about this many entries, once per chunk."),
    Option("approximate", _flag, True, "`true`", "Trim by whole nodes (`~`), or to exactly `maxlen` (`=`)."),
    Option("delivery", _one_of("at-least-once"), "at-least-once", "`at-least-once`", "A retried task writes again."),
    Option("chunkSize", _count, 5_000, "`5000`", "How many entries are sent before their replies are checked."),
    Option(
        "nulls",
        _one_of("omit", "empty"),
        "omit",
        "`omit`",
        "A null value: leave its field out of the entry, or write an empty one.",
    ),
)


class Options:
    """The checked options of one reader or writer; read as attributes-by-name: `options["chunkSize"]`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def address(self) -> Address:
        """The server."""
        address: Address = self._values["url"]
        return address


def parse_options(given: Mapping[str, str], table: Iterable[Option], side: str) -> Options:
    """Check what a user typed against a table. side: `source` or `sink`, for messages.

    Raises UnknownOptionError, InvalidOptionError.
    """
    known = {option.name.lower(): option for option in table}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in _SPARKS_OWN:
            continue
        option = known.get(name.lower())
        if option is None:
            raise UnknownOptionError(_unknown(name, known, side))
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            raise InvalidOptionError(f"{side} option {option.name}={text[:200]!r} {error}") from None
    for option in known.values():
        if option.name not in values:
            if option.default is REQUIRED:
                raise InvalidOptionError(f"{side} option {option.name} is missing: {option.doc}")
            values[option.name] = option.default() if callable(option.default) else option.default
    _check_together(values)
    return Options(values)


def _check_together(values: Mapping[str, Any]) -> None:
    """Options that must fit each other. Raises InvalidOptionError."""
    starting, streams = values.get("startingOffsets"), values.get("streams")
    for stream in starting.per_stream if isinstance(starting, StartingOffsets) else ():
        if streams is not None and stream not in streams:
            near = difflib.get_close_matches(stream.lower(), {name.lower(): name for name in streams}, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidOptionError(f"startingOffsets names stream {stream!r}, which is not among streams{hint}")


def _unknown(name: str, known: Mapping[str, Option], side: str) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[near[0]].name!r}? " if near else ""
    names = ", ".join(option.name for option in known.values())
    return f"the rstream {side} has no option {name!r}; {hint}it knows {names}"


def table_of(options: Iterable[Option]) -> str:
    """A Markdown table for README."""
    rows = ["| option | default | |", "|---|---|---|"]
    rows += [f"| `{o.name}` | {'required' if o.default is REQUIRED else o.shown} | {o.doc} |" for o in options]
    return "\n".join(rows)


if __name__ == "__main__":
    print("Source\n", table_of(SOURCE), "\nSink\n", table_of(SINK), sep="\n")
