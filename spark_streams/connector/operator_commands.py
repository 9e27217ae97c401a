"""Commands of `rstream` that error messages and log lines name as a remedy, to copy into a shell. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from spark_streams.base.pattern import is_pattern

ONLY = "--only"  # bound of a change: stream, group, ID


def seek_command(stream: str, group: str, position: object, consumer: str = "") -> str:
    """Return the command that sets a stopped query's group to a position. consumer: of the query, if it may be missing
    from the group."""
    named = ["--consumer", consumer] if consumer else []
    return _command("groups seek", stream, group, "--to", str(position), *named, "--yes")


def create_command(stream: str, group: str, position: object) -> str:
    """Return the command that creates a group at a position."""
    return _command("groups create", stream, group, "--start", str(position), "--yes")


def delete_consumer_command(stream: str, group: str, consumer: str) -> str:
    """Return the command that deletes a consumer of a group. The command refuses if entries are pending for it."""
    return _command("groups delete", stream, group, "--consumer", consumer, "--yes")


def acknowledge_command(stream: str, group: str, consumer: str) -> str:
    """Return the command that acknowledges all entries that are pending for a consumer: they are not read again."""
    return _command("groups ack", stream, group, "--consumer", consumer, "--yes")


def pending_command(stream: str, group: str) -> str:
    """Return the command that lists the first pending entries of a group."""
    return _command("pending", stream, group, "--entries", "20")


def forget_command(stream: str, group: str) -> str:
    """Return the command that shows what an idle group holds back. With --yes it lets the group hold nothing back."""
    exact = ["--exact"] if is_pattern(stream) or is_pattern(group) else []
    name = ["--", stream] if stream.startswith("-") else [stream]
    return shell_line(["groups", "prune", "--hold", "--idle", "1d", *exact, f"--group={group}", *name])


def redrive_command(stream: str) -> str:
    """Return the command that sends dead letters, or entries that wait for a retry, back to their streams."""
    return f"rstream dead redrive {shlex.join([stream, '--yes'])}"


def delete_shards_command(stream: str, *options: str) -> str:
    """Return the command that deletes a sharded stream. The command refuses if entries are unread."""
    return f"rstream shards {shlex.join([stream, '--delete', *options, '--yes'])}"


def recreate_shards_command(stream: str) -> str:
    """Return the command that creates lost shards again, empty."""
    return f"rstream shards {shlex.join([stream, '--recreate', '--yes'])}"


def _command(name: str, stream: str, group: str, *options: str) -> str:
    return f"rstream {name} {shlex.join([stream, '--group', group, *options])}"


def shell_line(arguments: Sequence[str]) -> str:
    """Return the command as one line for a POSIX shell. arguments: the words after `rstream`."""
    return f"rstream {shell_words(arguments)}"


def shell_words(words: Sequence[str]) -> str:
    """Return the words for a POSIX shell, with control characters as escapes."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    characters = (_escaped(character) for character in word)
    return "$'" + "".join(characters) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
