"""Reading arguments: numbers, names, entry IDs, with Redis' error texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from spark_streams.base.ids import U64_MAX
from spark_streams.base.pattern import compile_pattern
from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.store import entryid
from spark_streams.engine.store.keyspace import Database

SYNTAX = "ERR syntax error"
NOT_INTEGER = "ERR value is not an integer or out of range"
NOT_SMALL = "ERR value is out of range, value must between -2147483648 and 2147483647"
BAD_ID = "ERR Invalid stream ID specified as stream command argument"
BAD_NAME = "ERR Client names cannot contain spaces, newlines or special characters."

LONGEST_PATTERN = 512  # bytes: preparing the worst one takes some milliseconds, for which all clients wait

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def syntax_error() -> CommandError:
    """Return the error `ERR syntax error`."""
    return CommandError(SYNTAX)


def cursor_of(text: bytes) -> int:
    """Return the cursor of SCAN and HSCAN: an unsigned 64-bit integer. Raises CommandError."""
    if not text.isdigit() or len(text) > 20 or int(text) > U64_MAX:
        raise CommandError("ERR invalid cursor")
    return int(text)


def pattern_of(text: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a name matches a pattern. Raises CommandError if the pattern is too long."""
    return any_pattern_of([text])


def any_pattern_of(texts: Sequence[bytes]) -> Callable[[bytes], bool]:
    """Return a function that tells whether a name matches one of the patterns. Raises CommandError if they are too
    long, all together."""
    size = sum(map(len, texts))
    if size > LONGEST_PATTERN or len(texts) > LONGEST_PATTERN:
        raise CommandError(
            f"ERR pattern too long: {len(texts)} with {size} bytes, and this engine accepts {LONGEST_PATTERN} bytes. "
            "Use a shorter pattern"
        )
    if len(texts) == 1:
        return compile_pattern(texts[0])
    each = [compile_pattern(text) for text in dict.fromkeys(texts)]
    return lambda name: any(matches(name) for matches in each)


def integer_of(text: bytes, problem: str = NOT_INTEGER) -> int:
    """Return a signed 64-bit integer in canonical form (`string2ll`). Raises CommandError(problem)."""
    if _INTEGER.fullmatch(text):
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return value
    raise CommandError(problem)


def database_of(databases: Sequence[Database], text: bytes, problem: str = "") -> Database:
    """Return the database of this number. Raises CommandError: `problem`, or Redis' own text, if it is no number."""
    number = integer_of(text, problem or NOT_INTEGER)
    if not -(1 << 31) <= number < 1 << 31:
        raise CommandError(problem or NOT_SMALL)
    if not 0 <= number < len(databases):
        raise CommandError("ERR DB index is out of range")
    return databases[number]


def name_of(text: bytes, problem: str = BAD_NAME) -> bytes:
    """Return a client's name: one word in ASCII (`validateClientAttr`). Raises CommandError(problem)."""
    if any(not 33 <= byte <= 126 for byte in text):
        raise CommandError(problem)
    return text


def entry_id(text: bytes, missing_seq: int = 0) -> int:
    """Return an entry ID, which is neither `-` nor `+`. Raises CommandError."""
    try:
        return entryid.parse(text, missing_seq)
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None


def any_entry_id(text: bytes) -> int:
    """Return an entry ID, also for `-` and `+`. Raises CommandError."""
    try:
        return entryid.parse_bound(text)
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None


def interval(start: bytes, end: bytes) -> tuple[int, int]:
    """Return the first and last ID of a range, both included; `(` excludes. Raises CommandError."""
    return interval_start(start), interval_end(end)


def interval_start(text: bytes) -> int:
    """Return the first ID of a range. Raises CommandError."""
    value, exclusive = _bound(text, 0)
    if exclusive:
        if value == entryid.HIGHEST:
            raise CommandError("ERR invalid start ID for the interval")
        value += 1
    return value


def interval_end(text: bytes) -> int:
    """Return the last ID of a range. Raises CommandError."""
    value, exclusive = _bound(text, U64_MAX)
    if exclusive:
        if value == 0:
            raise CommandError("ERR invalid end ID for the interval")
        value -= 1
    return value


def _bound(text: bytes, missing_seq: int) -> tuple[int, bool]:
    exclusive = len(text) > 1 and text[:1] == b"("
    try:
        if exclusive:
            return entryid.parse(text[1:], missing_seq), True
        return entryid.parse_bound(text, missing_seq), False
    except entryid.BadEntryIdError:
        raise CommandError(BAD_ID) from None


def help_lines(name: str, lines: str) -> list[str]:
    """Return the text of `<name> HELP`: the usage lines between Redis' first and last lines."""
    return [
        f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        *lines.strip("\n").split("\n"),
        "HELP",
        "    Prints this help.",
    ]
