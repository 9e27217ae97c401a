"""A pipelined chunk: many whole commands, read by hiredis.

hiredis is used only on what proves to end where a command does, and never given a count that it would make much room
for in advance. What it cannot make sense of is left to the strict parser (request_parser.py), for the right words. One
thing differs between them: an argument sent as a simple string (`+`), which no client does, passes here.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import hiredis

from spark_streams.engine.resp.requests import Request, RequestLimits

# hiredis makes room for as many elements as a header promises.
_MANY = re.compile(rb"\*[0-9]{6}")
_OTHER_AGGREGATE = re.compile(rb"\n[%~>|](?!\r\n)")
_OTHER_AGGREGATES = ((37, b"\n%"), (126, b"\n~"), (62, b"\n>"), (124, b"\n|"))
_BORDER = b"\r\n*"
_SENTINEL = b"+\r\n"  # read as b"" between commands, and as a part of a command within one


def whole_commands(data: bytes, found: list[Request], limits: RequestLimits) -> int:
    """As many whole commands as hiredis can read from this pipelined chunk; where they end (0: leave it alone)."""
    if _MANY.search(data) is not None:
        return 0
    for sign, header in _OTHER_AGGREGATES:
        # MAXLEN ~ 1000 has a line of nothing but `~`, which is no header.
        if sign in data and header in data and _OTHER_AGGREGATE.search(data) is not None:
            return 0
    # Most chunks end where a command does, be it one with a thousand ids.
    for end in (len(data) if data.endswith(b"\r\n") else 0, _last_border(data)):
        commands = _read_whole(data, end) if end >= 2 else None
        if commands is not None:
            break
    else:
        return 0
    if end > limits.bulk and max(map(len, chain.from_iterable(commands)), default=0) > limits.bulk:
        return 0
    found += commands if all(commands) else [command for command in commands if command]
    return end


def _last_border(data: bytes) -> int:
    """Where the last command seems to begin: a line `*<digit>…`, which the id `*` of an XADD is not; 1 if nowhere."""
    at = len(data)
    while (at := data.rfind(_BORDER, 0, at)) >= 0:
        if data[at + 3 : at + 4].isdigit():
            return at + 2
    return 1


def _read_whole(data: bytes, end: int) -> list[list[bytes]] | None:
    """The commands in data[:end] by hiredis; None if they are not commands, or if the last is not whole."""
    reader = hiredis.Reader()
    reader.feed(data, 0, end)
    reader.feed(_SENTINEL)
    commands: list[Any] = []
    gets = reader.gets
    try:
        while (command := gets()) is not False:
            commands.append(command)
        if not commands or commands.pop() != b"":
            return None  # what looked like a border lies within an argument
        if set(map(type, commands)) != {list}:
            return None
        # The cheapest test there is that all arguments are byte strings.
        b"".join(chain.from_iterable(commands))
    except (hiredis.HiredisError, TypeError):
        return None
    return commands
