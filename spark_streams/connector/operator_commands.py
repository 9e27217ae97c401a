"""Commands of `rstream` that error messages and log lines name as a remedy, to copy into a shell. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from spark_streams.base.pattern import is_pattern

ONLY = "--only"  # bound of a change: stream, group, ID


def seek_command(stream: str, group: str, position: object, consumer: str = "") -> str:
    """Return the command that sets a stopped query's group. consumer: of the query, if the group may lack it."""
    named = ["--consumer", consumer] if consumer else []
    return command_on(stream, "groups seek", "--group", group, "--to", str(position), *named, "--yes")


def create_command(stream: str, group: str, position: object) -> str:
    """Return the command that creates a group at a position."""
    return command_on(stream, "groups create", "--group", group, "--start", str(position), "--yes")


def delete_consumer_command(stream: str, group: str, consumer: str) -> str:
    """Return the command that deletes a consumer of a group. The command refuses if entries are pending for it."""
    return command_on(stream, "groups delete", "--group", group, "--consumer", consumer, "--yes")


def acknowledge_command(stream: str, group: str, consumer: str) -> str:
    """Return the command that acknowledges all entries that are pending for a consumer: they are not read again."""
    return command_on(stream, "groups ack", "--group", group, "--consumer", consumer, "--yes")


def claim_command(stream: str, group: str, consumer: str) -> str:
    """Return the command that hands the entries that are pending for a consumer to another one, CONSUMER."""
    return command_on(stream, "groups claim", "--group", group, "--from", consumer, "--to", "CONSUMER")


def forget_command(stream: str, group: str) -> str:
    """Return the command that shows what an idle group holds back. With --yes it lets the group hold nothing back."""
    exact = ["--exact"] if is_pattern(stream) or is_pattern(group) else []
    return command_on(stream, "groups prune", "--hold", "--idle", "1d", *exact, f"--group={group}")


def redrive_command(stream: str) -> str:
    """Return the command that sends dead letters, or entries that wait for a retry, back to their streams."""
    return command_on(stream, "dead redrive", "--yes")


def delete_shards_command(stream: str, *options: str) -> str:
    """Return the command that deletes a sharded stream. The command refuses if entries are unread."""
    return command_on(stream, "shards", "--delete", *options, "--yes")


def command_on(stream: str, name: str, *options: str) -> str:
    """Return a command on a stream, which may have any name, as one line for a POSIX shell."""
    words = [*options, "--", stream] if stream.startswith("-") else [stream, *options]
    return shell_line([*name.split(), *words])


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
