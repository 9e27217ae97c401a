"""A pipelined chunk: many whole commands, read by hiredis.

hiredis reads only bytes that are known to end where a command ends. It never gets an element count for which it would
allocate much memory in advance. Input that hiredis cannot read is left to the strict parser (request_parser.py), which
returns Redis' error texts. One difference: an argument sent as a simple string (`+`), as no client does, is accepted.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import hiredis

from spark_streams.engine.resp.requests import Request, RequestLimits

# hiredis allocates as many elements as a header announces.
_MANY = re.compile(rb"\*[0-9]{6}")
_OTHER_AGGREGATE = re.compile(rb"\n[%~>|](?!\r\n)")
_OTHER_AGGREGATES = ((37, b"\n%"), (126, b"\n~"), (62, b"\n>"), (124, b"\n|"))
_BORDER = b"\r\n*"
_SENTINEL = b"+\r\n"  # read as b"" between commands, and as a part of a command within one


def whole_commands(data: bytes, requests: list[Request], limits: RequestLimits) -> int:
    """Append the whole commands that hiredis reads from this chunk. Return where they end; 0: not readable this way."""
    if _MANY.search(data) is not None:
        return 0
    for sign, header in _OTHER_AGGREGATES:
        # MAXLEN ~ 1000 has a line that is only `~`, which is no header.
        if sign in data and header in data and _OTHER_AGGREGATE.search(data) is not None:
            return 0
    # Most chunks end where a command ends, also a command with a thousand IDs.
    for end in (len(data) if data.endswith(b"\r\n") else 0, _last_border(data)):
        commands = _read_whole(data, end) if end >= 2 else None
        if commands is not None:
            break
    else:
        return 0
    if end > limits.bulk and max(map(len, chain.from_iterable(commands)), default=0) > limits.bulk:
        return 0
    requests += commands if all(commands) else [command for command in commands if command]
    return end


def _last_border(data: bytes) -> int:
    """Position of the last line `*<digit>…`, the likely start of a command (not an XADD's `*`); 1 if there is none."""
    border = len(data)
    while (border := data.rfind(_BORDER, 0, border)) >= 0:
        if data[border + 3 : border + 4].isdigit():
            return border + 2
    return 1


def _read_whole(data: bytes, end: int) -> list[list[bytes]] | None:
    """Return the commands in data[:end], read by hiredis; None if they are no commands or the last is incomplete."""
    reader = hiredis.Reader()
    reader.feed(data, 0, end)
    reader.feed(_SENTINEL)
    commands: list[Any] = []
    gets = reader.gets
    try:
        while (command := gets()) is not False:
            commands.append(command)
        if not commands or commands.pop() != b"":
            return None  # the border lies within an argument
        if set(map(type, commands)) != {list}:
            return None
        # The cheapest test that all arguments are byte strings.
        b"".join(chain.from_iterable(commands))
    except (hiredis.HiredisError, TypeError):
        return None
    return commands
