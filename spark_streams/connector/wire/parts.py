"""Commands with more arguments than a managed server takes, as several commands with the same effect.

The only place that knows the bound. Only XADD may exceed it: an entry is one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

MOST_ARGUMENTS = 3_900  # of a request; ElastiCache Serverless refuses more than 3,999

Command = Sequence[str | bytes | int]

# The arguments before the members, which each part repeats. A member of HSET is a pair.
_HEADS = {
    **dict.fromkeys(("DEL", "UNLINK", "EXISTS", "WATCH"), 1),
    **dict.fromkeys(("XDEL", "HDEL", "HMGET", "HSET", "SADD", "SREM"), 2),
    **{"XACK": 3, "XCLAIM": 5, "XNACK": 6},
}
_OPTIONS = frozenset({"RETRYCOUNT", "FORCE", "JUSTID"})  # of XCLAIM, behind the members


def have_long(commands: Sequence[Command]) -> bool:
    """Whether one of the commands has parts."""
    return max(map(len, commands), default=0) > MOST_ARGUMENTS and any(len(in_parts(one)) > 1 for one in commands)


def in_parts(command: Command) -> list[Command]:
    """Return the command, or parts of it that have its members in order."""
    size = _HEADS.get(str(command[0]))
    if len(command) <= MOST_ARGUMENTS or size is None:
        return [command]
    end = len(command)
    if command[0] == "XCLAIM":
        end = next((at for at in range(max(size, end - 4), end) if command[at] in _OPTIONS), end)
    members, tail = command[size:end], command[end:]
    most = MOST_ARGUMENTS - size - len(tail)
    most -= most % 2
    counted = command[0] == "XNACK"  # its head ends in the number of members
    return [
        (*command[: size - counted], *([len(some)] if counted else []), *some, *tail)
        for some in (members[start : start + most] for start in range(0, len(members), most))
    ]


def most_streams() -> int:
    """Return how many streams one XREAD names, each with its ID."""
    return (MOST_ARGUMENTS - 6) // 2


def join(replies: Sequence[Any]) -> Any:
    """Return the reply to a command from those to its parts: the first error, the sum, or all values in a row."""
    if len(replies) == 1 or isinstance(replies[0], Exception):
        return replies[0]
    if isinstance(error := next((reply for reply in replies if isinstance(reply, Exception)), None), Exception):
        return error
    if isinstance(replies[0], int):
        return sum(replies)
    return [value for reply in replies for value in reply] if isinstance(replies[0], list) else replies[0]


def joined(commands: Sequence[Command], parts: Sequence[Sequence[Command]], replies: Iterator[Any]) -> list[Any]:
    """Return a reply for each command from the replies to all parts in a row."""
    answers: list[Any] = []
    queued: list[int] = []  # parts of each command since MULTI
    for command, of_command in zip(commands, parts, strict=True):
        answer = join([next(replies) for _ in of_command])
        if command[0] == "EXEC" and isinstance(answer, list):
            results = iter(answer)
            answer = [join([next(results) for _ in range(count)]) for count in queued]
        if command[0] == "MULTI":
            queued = []
        else:
            queued.append(len(of_command))
        answers.append(answer)
    return answers
