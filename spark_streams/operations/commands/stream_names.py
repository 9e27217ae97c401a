"""The streams that names and patterns on the command line mean. The rule: connector/wire/scan.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from spark_streams.base.units import counted
from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.keys import is_product_key
from spark_streams.operations.commands.shared import say

if TYPE_CHECKING:
    from spark_streams.connector.wire.connection import Server

F = TypeVar("F", bound=Callable[..., object])
Name = str | bytes  # bytes if it is not UTF-8


def exact_option(command: F) -> F:
    """Add `--exact`, with which a name is never taken as a pattern."""
    return click.option("--exact", is_flag=True, help="Each STREAM is a name, never a pattern.")(command)


def streams_by_word(server: Server, words: Sequence[str], exact: bool = False) -> dict[str, tuple[list[Name], bool]]:
    """Return for each word its streams, and whether it is a pattern. A sharded stream becomes its shards. A stream that
    is named may not exist. exact: all words are names. Raises ServerError."""
    from spark_streams.connector.admin.streams import fetch_shard_sets
    from spark_streams.connector.deadletter.envelope import text
    from spark_streams.connector.wire.scan import matching_keys, names_and_patterns

    divided = names_and_patterns(server, words, exact)
    sets = fetch_shard_sets(server, sorted(divided.names))
    streams: dict[str, tuple[list[Name], bool]] = {}
    for word in words:
        if word in divided.names:
            streams[word] = (list(sets[word].names) if word in sets else [word]), False
        else:
            found = sorted(matching_keys(server, word))
            streams[word] = [_name(key) for key in found if not is_product_key(text(key))], True
    return streams


def named_streams(
    server: Server, words: Sequence[str], with_retry_streams: bool = False, exact: bool = False
) -> list[Name]:
    """Return the streams of names and patterns, or all streams of the server if there are no words.

    with_retry_streams: all streams include those that hold entries waiting for a retry; exact: all words are names.
    Raises StreamMissingError if a stream does not exist, or if a pattern matches none."""
    from spark_streams.connector.wire.scan import list_streams, without_retry_streams

    if not words:
        all_streams = list_streams(server)
        return [*(all_streams if with_retry_streams else without_retry_streams(all_streams))]
    by_word = streams_by_word(server, words, exact)
    require_existing(server, [name for names, is_pattern in by_word.values() if not is_pattern for name in names])
    for word, (names, _) in by_word.items():
        if not names:
            raise _no_match(server, word)
    return list(dict.fromkeys(name for names, _ in by_word.values() for name in names))


def resolve_streams(
    server: Server, words: Sequence[str], group: str | None, exact: bool = False, dead_letters: bool = True
) -> list[str]:
    """Return the streams of names and patterns, for a command that changes them. A stream that is named may not exist.

    group: a pattern matches only streams that have this group. A stream whose name is not UTF-8 is left out, with a
    note. dead_letters: whether a pattern also matches streams to which queries have written dead letters; otherwise
    they are left out, with a note. Raises StreamMissingError if a pattern matches none."""
    from spark_streams.connector.wire.xinfo import streams_with_group

    streams: list[str] = []
    for word, (names, is_pattern) in streams_by_word(server, words, exact).items():
        readable = [name for name in names if isinstance(name, str)]
        if left_out := len(names) - len(readable):
            say(f"note: {counted(left_out, 'stream')} of {word} left out: no name in UTF-8; use redis-cli", err=True)
        if is_pattern and group is not None:
            readable = streams_with_group(server, readable, group)
        if is_pattern and not dead_letters:
            readable = _without_dead_letters(server, word, readable)
        if not readable:
            raise _no_match(server, word, "" if group is None else f" has a group {group!r} and")
        streams += readable
    return list(dict.fromkeys(streams))


def require_existing(server: Server, names: Sequence[Name]) -> None:
    """Raise StreamMissingError if one of these streams does not exist. The error has the nearest names."""
    from spark_streams.connector.wire.replies import is_no_such_key, is_not_permitted, is_wrong_type
    from spark_streams.connector.wire.scan import hint_of_names

    # XINFO rather than EXISTS: a user with rights for stream commands only may send it.
    commands = [("XINFO", "STREAM", name) for name in names]
    replies = server.execute_all(commands, is_no_such_key, is_not_permitted, is_wrong_type)
    missing = [str(name) for name, reply in zip(names, replies, strict=True) if is_no_such_key(reply)]
    if missing:
        hint = hint_of_names(server, missing)
        raise StreamMissingError(f"no stream {', '.join(map(repr, missing))} at {server.address}; {hint}")


def _without_dead_letters(server: Server, pattern: str, streams: Sequence[str]) -> list[str]:
    from spark_streams.connector.admin.streams import fetch_recorded

    recorded = fetch_recorded(server, streams)
    if recorded:
        named = f"{', '.join(map(repr, sorted(recorded)[:3]))}{', …' if len(recorded) > 3 else ''}"
        say(f"note: {counted(len(recorded), 'dead-letter stream')} of {pattern} left out: {named}", err=True)
    return [stream for stream in streams if stream not in recorded]


def _no_match(server: Server, word: str, having: str = "") -> StreamMissingError:
    from spark_streams.connector.wire.scan import hint_of_names

    return StreamMissingError(
        f"no stream at {server.address}{having} is called {word!r} or matches it; {hint_of_names(server, [word])}"
    )


def _name(key: bytes) -> Name:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
