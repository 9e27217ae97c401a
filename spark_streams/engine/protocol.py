"""Requests: from bytes that arrive to lists of arguments.

Every connection's parser knows where each command begins, and holds no more of an unfinished one than has arrived:

    a run of XADDs         taken as one (runs.py)
    whole commands, many   hiredis' C reader, four times as fast; used only on what proves to end where a command
                           does, and never given a count that it would make much room for in advance
    one whole command      split at the line ends (`_one_command`)
    everything else        the strict parser: inline commands, unfinished ones (it goes on where it stopped, so that a
                           request in single bytes costs its length, not its square), and malformed ones, which it
                           refuses with Redis' own words

What hiredis cannot make sense of is parsed again by the strict parser, for the right words. One thing differs between
them: an argument sent as a simple string (`+`), which no client does, passes in a long pipelined chunk.

Sizes are bounded as in Redis: 2^31-1 arguments, of 512 MB each (proto-max-bulk-len), 64 KB for an inline command, 1 GB
for an unfinished request (client-query-buffer-limit); and next to nothing before AUTH. Source: the RESP specification,
Redis' `processInlineBuffer`, `processMultibulkBuffer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import hiredis

from spark_streams.engine.replies import HEADERS
from spark_streams.engine.runs import SHORTEST, Run, Shape, Shapes, find_run

Request: TypeAlias = list[bytes] | Run  # one command, or many as one

MAX_ARGUMENTS = 2**31 - 1
MAX_INLINE = 64 * 1024
PIPELINED = 4096  # bytes at hand from which on hiredis is worth its while
_LONG_RUN = 16384  # bytes of a run behind which another one is looked for
_BETWEEN_RUNS = 8192  # bytes of other commands between two runs
_PER_ARGUMENT = 50  # bytes that Python takes for each argument, roughly

# hiredis makes room for as many elements as a header promises.
_MANY = re.compile(rb"\*[0-9]{6}")
_OTHER_AGGREGATE = re.compile(rb"\n[%~>|](?!\r\n)")
_OTHER_AGGREGATES = ((37, b"\n%"), (126, b"\n~"), (62, b"\n>"), (124, b"\n|"))


class ProtocolError(Exception):
    """The connection cannot be understood any more: send `-ERR Protocol error: <text>` and close."""


class TooLongError(ProtocolError):
    """An unfinished request is longer than client-query-buffer-limit: close without a word, as Redis does."""


@dataclass
class RequestLimits:
    """What one connection may ask for."""

    bulk: int = 512 * 1024 * 1024  # bytes of an argument
    held: int = 1 << 30  # bytes of an unfinished request
    arguments: int = MAX_ARGUMENTS
    unauthenticated: bool = False


BEFORE_AUTH = RequestLimits(bulk=16384, arguments=10, unauthenticated=True)


class RequestParser:
    """One connection's parser: `feed` it bytes, get commands. `limits` may be replaced between two commands.

    Before AUTH it gives one command at a time; `feed(b"")` goes on with the rest. With `shapes`, neighbouring
    XADDs that differ only in their values may come as one Run.
    """

    __slots__ = ("_arguments", "_count", "_held", "_shape", "_shapes", "_taken", "_wanted", "failure", "limits")

    def __init__(self, limits: RequestLimits | None = None, shapes: Shapes | None = None) -> None:
        self._shapes = shapes
        self._shape: Shape | None = None  # of this connection's last run
        self.limits = limits or RequestLimits()
        self.failure: ProtocolError | None = None  # set once; the commands before it are still good
        self._arguments: list[bytes] = []  # of the unfinished command
        self._count = 0  # how many it will have; 0 between commands
        self._taken = 0  # about the bytes of memory that `_arguments` takes
        self._held = bytearray()  # arrived and not used: an unfinished line or argument
        self._wanted = 0  # bytes of `_held` without which nothing can be finished

    @property
    def held(self) -> int:
        """About how many bytes the unfinished request takes."""
        return len(self._held) + self._taken

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes in; the commands that are complete by now. After a malformed one `failure` is set."""
        held = self._held
        if held:
            held += data
            if len(held) < self._wanted:
                self._check_held()
                return []
            data = bytes(held)
            held.clear()
        found: list[Request] = []
        start = 0
        try:
            if self._count:
                start = self._strict(data, 0, found, alone=True)
            if not self._count:
                if start:
                    data, start = data[start:], 0
                may_skip = True
                while len(data) >= SHORTEST and data[0] == 42:
                    run = self._run(data)
                    if run is not None:
                        found.append(run)
                        data = data[len(run.raw) :]
                        may_skip = len(run.raw) >= _LONG_RUN
                        if not may_skip:
                            break  # to look for each of many short runs costs more than it gains
                    elif may_skip and (before := self._before_next_run(data, found)) > 0:
                        data = data[before:]
                        may_skip = False
                    else:
                        break
                if data[:1] == b"*":
                    if len(data) >= PIPELINED:
                        start = _whole_commands(data, found, self.limits)
                    elif not self.limits.unauthenticated and (arguments := _one_command(data)) is not None:
                        found.append(arguments)
                        return found
                start = self._strict(data, start, found)
        except ProtocolError as failure:
            self.failure = failure
            self._arguments = []
            return found
        if start < len(data):
            held += data[start:] if start else data
            self._wanted -= start
        if self._count or held:
            self._check_held()
        return found

    def _run(self, data: bytes) -> Run | None:
        """The run with which the data begins."""
        shape = self._shape
        if shape is None or not data.startswith(shape.prefix):
            if self._shapes is None or self.limits.unauthenticated:
                return None
            shape = self._shapes.learn(data)
            if shape is None:
                return None
            self._shape = shape
        return find_run(shape, data)

    def _before_next_run(self, data: bytes, found: list[Request]) -> int:
        """Take the few commands that stand before what looks like more of this connection's last run (MULTI before the
        XADDs, EXEC and all that behind those of the last transaction); where they end, 0 if they are not commands."""
        if self._shape is None or self.limits.unauthenticated:
            return 0
        border = data.find(self._shape.prefix, 1, _BETWEEN_RUNS)
        if border < 0:
            return 0
        few: list[Request] = []
        if _whole_commands(data[:border], few, self.limits) != border:
            return 0  # it lies within an argument
        found += few
        return border

    def _check_held(self) -> None:
        if self.held > self.limits.held:
            self.failure = TooLongError()
            self._held.clear()
            self._arguments, self._taken = [], 0

    def _strict(self, data: bytes, at: int, found: list[Request], alone: bool = False) -> int:
        """Commands from `at` on, or one alone; where the unused bytes begin."""
        size = len(data)
        while at < size:
            if found and self.limits.unauthenticated:
                self._wanted = 0
                return at
            if not self._count:
                if data[at] != 42:
                    end = _inline(data, at, found)
                    if end < 0:
                        self._wanted = 0
                        return at
                    at = end
                    continue
                line = data.find(b"\r\n", at, at + MAX_INLINE + 2)
                if line < 0:
                    if size - at > MAX_INLINE:
                        raise ProtocolError("too big mbulk count string")
                    self._wanted = 0
                    return at
                count = _length(data[at + 1 : line])
                if count is None or count > MAX_ARGUMENTS:
                    raise ProtocolError("invalid multibulk length")
                if count > self.limits.arguments:
                    raise ProtocolError("unauthenticated multibulk length")
                at = line + 2
                if count <= 0:
                    continue
                self._count = count
                self._arguments = []
                self._taken = 0
            at = self._take_arguments(data, at)
            if self._count:
                return at
            found.append(self._arguments)
            self._taken = 0
            if alone:
                break
        return at

    def _take_arguments(self, data: bytes, at: int) -> int:
        """Arguments of the unfinished command from `at` on; where the unused bytes begin."""
        arguments, size, longest = self._arguments, len(data), self.limits.bulk
        for _ in range(self._count - len(arguments)):
            line = data.find(b"\r\n", at, at + MAX_INLINE + 2)
            if line < 0:
                if at < size and data[at] != 36:
                    raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
                if size - at > MAX_INLINE:
                    raise ProtocolError("too big bulk count string")
                self._wanted = 0
                break
            if data[at] != 36:
                raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
            length = _length(data[at + 1 : line])
            if length is None or length < 0 or length > longest:
                if length is not None and length > longest and self.limits.unauthenticated:
                    raise ProtocolError("unauthenticated bulk length")
                raise ProtocolError("invalid bulk length")
            end = line + 2 + length
            if end + 2 > size:
                self._wanted = end + 2
                break
            arguments.append(data[line + 2 : end])
            self._taken += length + _PER_ARGUMENT
            at = end + 2
        else:
            self._count = 0
        return at


_BORDER = b"\r\n*"
_SENTINEL = b"+\r\n"  # read as b"" between commands, and as a part of a command within one


def _whole_commands(data: bytes, found: list[Request], limits: RequestLimits) -> int:
    """As many whole commands as hiredis can read from this pipelined chunk; where they end (0: leave it alone)."""
    if limits.unauthenticated or _MANY.search(data) is not None:
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


def single_commands(requests: Iterable[Request]) -> list[Request]:
    """The same requests, each Run as its commands."""
    found: list[Request] = []
    for request in requests:
        found += request.commands() if isinstance(request, Run) else [request]
    return found


def size_of(request: Request) -> int:
    """About the memory that a request takes."""
    return len(request.raw) * 2 if isinstance(request, Run) else sum(map(len, request)) + 100


def _one_command(data: bytes) -> list[bytes] | None:
    """The arguments, if this is exactly one command in canonical form; None says nothing.

    Split at the line ends, every second line must be the very header of the line after it: that proves the shape.
    """
    lines = data.split(b"\r\n", 64)
    arguments = lines[2:-1:2]
    if lines[-1] or not arguments or lines[0] != b"*%d" % len(arguments):
        return None
    return arguments if lines[1:-1:2] == [HEADERS[len(argument)] for argument in arguments] else None


def _length(digits: bytes) -> int | None:
    if digits.isdigit() and len(digits) < 20 and (digits[0] != 48 or len(digits) == 1):
        return int(digits)
    if digits[:1] == b"-" and digits[1:].isdigit() and digits[1] != 48:
        return -1
    return None


_PLAIN = re.compile(rb"[^\"'\0\v\f]*")


def _inline(data: bytes, start: int, found: list[Request]) -> int:
    line = data.find(b"\n", start)
    if line < 0:
        if len(data) - start > MAX_INLINE:
            raise ProtocolError("too big inline request")
        return -1
    text = data[start:line].removesuffix(b"\r")
    arguments = text.split() if _PLAIN.fullmatch(text) else split_quoted(text)
    if arguments is None:
        raise ProtocolError("unbalanced quotes in request")
    if arguments:
        found.append(arguments)
    return line + 1


_ESCAPES = {110: 10, 114: 13, 116: 9, 98: 8, 97: 7}


def split_quoted(text: bytes) -> list[bytes] | None:
    """Words of a line as redis-cli quotes them (`sdssplitargs`); None when a quote is left open."""
    words: list[bytes] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in b" \t\n\v\f\r\0":
            at += 1
        if at >= end:
            return words
        word = bytearray()
        quote = 0
        while at < end:
            byte = text[at]
            if quote == 34 and byte == 92 and text[at + 1 : at + 2] == b"x" and _is_hex(text[at + 2 : at + 4]):
                word.append(int(text[at + 2 : at + 4], 16))
                at += 3
            elif quote == 34 and byte == 92 and at + 1 < end:
                at += 1
                word.append(_ESCAPES.get(text[at], text[at]))
            elif quote == 39 and byte == 92 and text[at + 1 : at + 2] == b"'":
                at += 1
                word.append(39)
            elif quote and byte == quote:
                if at + 1 < end and text[at + 1] not in b" \t\n\v\f\r":
                    return None
                quote = 0
                at += 1
                break
            elif quote:
                word.append(byte)
            elif byte in b" \n\r\t\0":
                break
            elif byte in (34, 39):
                quote = byte
            else:
                word.append(byte)
            at += 1
        if quote:
            return None
        words.append(bytes(word))


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)


def fields_wire(pairs: list[bytes]) -> bytes:
    """`*<n>\\r\\n$<length>\\r\\n<bytes>\\r\\n…`: the field section of an entry. TypeError for anything but bytes."""
    lines: list[bytes] = [b""] * (2 * len(pairs) + 2)
    lines[0] = b"*%d" % len(pairs)
    lines[1:-1:2] = map(HEADERS.__getitem__, map(len, pairs))
    lines[2:-1:2] = pairs
    return b"\r\n".join(lines)
