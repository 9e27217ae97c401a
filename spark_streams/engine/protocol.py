"""Requests: from bytes that arrive to lists of arguments.

A connection starts with the strict parser, which knows where each command begins: it takes inline commands, refuses
malformed ones with Redis' own words, and is exact. When a long pipelined chunk arrives at the beginning of a command,
the connection is handed to hiredis' C reader for good, which parses four times as fast. hiredis does not say where a
command ended and knows more types than a request may hold, so from there on inline commands are refused, the words of
an error are hiredis', and an argument sent as a simple string (`+`), which no client does, passes.

Sizes are bounded as in Redis: 1,048,576 arguments… of 512 MB each, 64 KB for an inline command. Source: the RESP
specification, Redis' `processInlineBuffer`, `processMultibulkBuffer`.
"""

from __future__ import annotations

from itertools import chain

import hiredis

from spark_streams.engine.replies import HEADERS

MAX_ARGUMENTS = 2**31 - 1
MAX_BULK = 512 * 1024 * 1024
MAX_INLINE = 64 * 1024
MAX_HELD = 1 << 30  # bytes of one request, as Redis' client-query-buffer-limit
PIPELINED = 4096  # bytes at hand from which on hiredis takes over


class ProtocolError(Exception):
    """The connection cannot be understood any more: send `-ERR Protocol error: <text>` and close."""


class RequestParser:
    """One connection's parser. `feed` bytes, then take `commands`."""

    __slots__ = ("_buffer", "_held", "_reader", "_wanted", "failure")

    def __init__(self) -> None:
        self._buffer = b""
        self._wanted = 0  # bytes without which the buffered command cannot be complete
        self._held = 0  # bytes given to hiredis since the last command came out
        self._reader: hiredis.Reader | None = None
        self.failure: ProtocolError | None = None  # set once; the commands before it are still good

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take bytes in; the commands that are complete by now. After a malformed one `failure` is set."""
        reader = self._reader
        if reader is None:
            if self._buffer:
                self._buffer += data
                if len(self._buffer) < self._wanted:
                    return []
                data = self._buffer
            if len(data) < PIPELINED or not _looks_pipelined(data):
                return self._strict(data)
            reader = self._reader = hiredis.Reader()
            self._buffer = b""
        return self._fast(reader, data)

    def _fast(self, reader: hiredis.Reader, data: bytes) -> list[list[bytes]]:
        reader.feed(data)
        found: list[list[bytes]] = []
        gets = reader.gets
        try:
            while (command := gets()) is not False:
                found.append(command)
        except hiredis.ProtocolError as problem:
            self.failure = ProtocolError(str(problem).removeprefix("Protocol error, ").replace('"', "'"))
        self._held = 0 if found else self._held + len(data)
        if self._held > MAX_HELD:
            self.failure = ProtocolError("too big request")
        try:
            # The cheapest test there is that all arguments are byte strings.
            b"".join(chain.from_iterable(found))
        except TypeError:
            sound = [_is_command(command) for command in found].index(False)
            self.failure = ProtocolError("expected '$'")
            return found[:sound]
        return found if all(found) else [command for command in found if command]

    def _strict(self, data: bytes) -> list[list[bytes]]:
        if data[0] == 42 and not self._buffer and (arguments := _one_command(data)) is not None:
            return [arguments]
        found: list[list[bytes]] = []
        start = 0
        self._wanted = 0
        try:
            while start < len(data):
                end = self._multibulk(data, start, found) if data[start] == 42 else _inline(data, start, found)
                if end < 0:
                    break
                start = end
        except ProtocolError as failure:
            self.failure = failure
        self._buffer = data[start:] if start < len(data) else b""
        if self._wanted:
            self._wanted -= start
        return found

    def _multibulk(self, data: bytes, start: int, found: list[list[bytes]]) -> int:
        """One `*<n>` command from `start`: appends it and returns where it ends, or -1 when it is not complete."""
        line = data.find(b"\r\n", start, start + MAX_INLINE + 2)
        if line < 0:
            if len(data) - start > MAX_INLINE:
                raise ProtocolError("too big mbulk count string")
            return -1
        count = _length(data[start + 1 : line])
        if count is None or count > MAX_ARGUMENTS:
            raise ProtocolError("invalid multibulk length")
        at = line + 2
        arguments: list[bytes] = []
        for _ in range(count):
            line = data.find(b"\r\n", at, at + MAX_INLINE + 2)
            if line < 0:
                if at < len(data) and data[at] != 36:
                    raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
                if len(data) - at > MAX_INLINE:
                    raise ProtocolError("too big bulk count string")
                return -1
            if data[at] != 36:
                raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
            length = _length(data[at + 1 : line])
            if length is None or length < 0 or length > MAX_BULK:
                raise ProtocolError("invalid bulk length")
            at = line + 2 + length
            if at + 2 > len(data):
                self._wanted = at + 2
                return -1
            arguments.append(data[line + 2 : at])
            at += 2
        if arguments:
            found.append(arguments)
        return at


def _is_command(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(argument, bytes) for argument in found)


def _looks_pipelined(data: bytes) -> bool:
    """Whether this begins as commands of a client library do: `*<n>\\r\\n$<n>\\r\\n` and a sound argument count."""
    if data[0] != 42:
        return False
    line = data.find(b"\r\n", 0, 9)  # up to 999,999 arguments: hiredis makes room for all of them at once
    return line > 1 and data[1:line].isdigit() and data[line + 2 : line + 3] == b"$"


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


def _inline(data: bytes, start: int, found: list[list[bytes]]) -> int:
    line = data.find(b"\n", start)
    if line < 0:
        if len(data) - start > MAX_INLINE:
            raise ProtocolError("too big inline request")
        return -1
    text = data[start:line].removesuffix(b"\r")
    arguments = split_quoted(text)
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
