"""Requests: from bytes that arrive to lists of arguments.

Each connection's parser finds where each command begins. It holds no more of an unfinished command than has arrived.
Arrived bytes go through these steps. Each step takes from their front, and the next step gets the remaining bytes:

    an unfinished command  is finished if its end has arrived

    a batch of XADDs       is taken as one (xadd_batch.py)
    many whole commands    hiredis' C reader, four times as fast (`whole_commands`)
    one whole command      is split at the line ends (`_one_command`)
    everything else        is read strictly: inline commands (`take_inline`), unfinished commands (continuing where it
                           stopped, so that a request in single bytes costs its length, not its square), and
                           malformed ones, which are refused with Redis' own error texts

Sizes are limited as in Redis: 2^31-1 arguments, 512 MB each (proto-max-bulk-len), 64 KB for an inline command, 1 GB for
an unfinished request (client-query-buffer-limit). Before AUTH the limits are much smaller.
Source: the RESP specification, Redis' `processMultibulkBuffer`.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, TypeAlias

import hiredis

from spark_streams.engine.resp.wire_replies import HEADERS
from spark_streams.engine.resp.xadd_batch import SHORTEST, BatchShape, Shapes, XaddBatch, find_batch

Request: TypeAlias = list[bytes] | XaddBatch  # one command, or many as one

MAX_ARGUMENTS = 2**31 - 1
MAX_INLINE = 64 * 1024


class ProtocolError(Exception):
    """The connection's bytes are not valid RESP: send `-ERR Protocol error: <text>` and close."""


class TooLongError(ProtocolError):
    """An unfinished request is longer than client-query-buffer-limit: close without a reply, as Redis does."""


class RequestLimits:
    """Limits of one connection."""

    def __init__(
        self,
        bulk: int = 512 * 1024 * 1024,
        held: int = 1 << 30,
        arguments: int = MAX_ARGUMENTS,
        unauthenticated: bool = False,
    ) -> None:
        self.bulk = bulk  # bytes of an argument
        self.held = held  # bytes of an unfinished request
        self.arguments = arguments  # of a command
        self.unauthenticated = unauthenticated  # the client has not logged in yet


def may_log_in(request: Request) -> bool:
    """Whether this command may change the limits of the following ones."""
    return isinstance(request, list) and request[0].lower() in (b"auth", b"hello")


BEFORE_AUTH = RequestLimits(bulk=16384, arguments=10, unauthenticated=True)


# Inline commands: a line of words, as typed by a person. Source: Redis' `processInlineBuffer`, `sdssplitargs`.
_PLAIN = re.compile(rb"[^\"'\0\v\f]*")


def take_inline(data: bytes, start: int, requests: list[Request]) -> int:
    """Take the command of one line; return the position behind it, -1 if incomplete. Raises ProtocolError."""
    line = data.find(b"\n", start, start + MAX_INLINE + 2)
    if line < 0:
        if len(data) - start > MAX_INLINE:
            raise ProtocolError("too big inline request")
        return -1
    text = data[start:line].removesuffix(b"\r")
    arguments = text.split() if _PLAIN.fullmatch(text) else split_quoted(text)
    if arguments is None:
        raise ProtocolError("unbalanced quotes in request")
    if arguments:
        requests.append(arguments)
    return line + 1


# Blanks, an unquoted part, a quoted part. Each repetition matches in only one way, so the time is linear.
_WORD = re.compile(
    rb"""
    [ \t\n\v\f\r\0]*
    ([^ \n\r\t\0"']*)
    (?: "([^"\\]*(?:\\.[^"\\]*)*)"
      | '([^'\\]*(?:\\(?:'|(?!'))[^'\\]*)*)'
    )?
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(rb"\\(?:x[0-9a-fA-F]{2}|.)", re.DOTALL)
_HEX = "0123456789abcdefABCDEF"
# Values of the escapes in double quotes.
_ESCAPES = {b"\\" + bytes((byte,)): bytes((byte,)) for byte in range(256)}
_ESCAPES.update({b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\b": b"\b", b"\\a": b"\a"})
_ESCAPES.update({f"\\x{high}{low}".encode(): bytes.fromhex(high + low) for high in _HEX for low in _HEX})


def split_quoted(text: bytes) -> list[bytes] | None:
    """Return the words of a line with redis-cli's quoting (`sdssplitargs`); None if a quote is not closed."""
    words: list[bytes] = []
    position, end = 0, len(text)
    while position < end:
        match = _WORD.match(text, position)
        assert match is not None  # the match may be empty
        word, double, single = match.groups()
        position = match.end()
        if double is not None:
            word += _ESCAPED.sub(lambda escaped: _ESCAPES[escaped[0]], double) if b"\\" in double else double
        elif single is not None:
            word += single.replace(b"\\'", b"'")
        elif text[position : position + 1] in (b'"', b"'"):
            return None
        elif not word:
            break
        words.append(word)
        if (double is not None or single is not None) and position < end and text[position] not in b" \t\n\v\f\r":
            return None
    return words


# A pipelined chunk: many whole commands, read by hiredis.
#
# hiredis reads only bytes that are known to end where a command ends. It never gets an element count for which it would
# allocate much memory in advance. Input that hiredis cannot read is left to the strict parser, which returns Redis'
# error texts. One difference: an argument sent as a simple string (`+`), as no client does, is accepted.

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


PIPELINED = 4096  # bytes from which on hiredis is faster
_LONG_BATCH = 16384  # bytes of a batch after which another one is searched
_BETWEEN_BATCHES = 8192  # bytes of other commands between two batches
_ASTERISK, _DOLLAR = b"*$"  # first byte of a command, first byte of an argument
_PER_ARGUMENT = 50  # approximate bytes that Python needs for each argument
_STEPS = 1000  # lines and arguments that one call reads strictly, about a millisecond
_BYTES_PER_STEP = 64  # of a line


class RequestParser:
    """One connection's parser: `feed` it bytes, get commands. `limits` may be replaced between two calls.

    Strict reading stops after about a millisecond. While there are `unread` bytes, call `feed(b"")` before feeding
    other bytes. Before AUTH the parser also stops after each AUTH and HELLO, because a login raises the limits. With
    `shapes`, adjacent XADDs that differ only in their values may be returned as one XaddBatch.
    """

    __slots__ = ("_argument_bytes", "_arguments", "_count", "_held", "_needed_bytes", "_position", "_shape", "_shapes",
                 "_steps", "failure", "limits", "unread")  # fmt: skip

    def __init__(self, limits: RequestLimits | None = None, shapes: Shapes | None = None) -> None:
        self._shapes = shapes
        self._shape: BatchShape | None = None  # shape of this connection's last batch
        self.limits = limits or RequestLimits()
        self.failure: ProtocolError | None = None  # set once; the commands before it are valid
        self._count = 0  # number of arguments of the unfinished command; 0: between commands
        self._arguments: list[bytes] = []  # its arguments that have arrived
        self._argument_bytes = 0  # approximate memory of these arguments, in bytes
        self._held = bytearray()  # arrived and not used: an unfinished line or argument
        self._needed_bytes = 0  # bytes of `_held` that are needed before reading can continue
        self.unread = b""  # bytes of the last call, read up to `_position`; empty if all were read
        self._position = 0
        self._steps = 0  # steps that this call may still take

    @property
    def holds(self) -> bool:
        """Whether a part of a request is kept."""
        return bool(self._held or self._count or self.unread)

    @property
    def held(self) -> int:
        """Approximate bytes of the unfinished request and of unread data."""
        return len(self._held) + self._argument_bytes + len(self.unread) - self._position

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes and return the commands that are now complete. Sets `failure` after a malformed request."""
        self._steps = _STEPS
        if self.unread:
            assert not data, 'feed(b"") until no byte is unread, before feeding new bytes'
            return self._continue_reading()
        if self._held:
            # All held bytes are an unfinished line, or an argument that needs more bytes.
            unfinished = self._needed_bytes == 0 and b"\n" not in data and len(self._held) + len(data) <= MAX_INLINE
            self._held += data
            if unfinished or len(self._held) < self._needed_bytes:
                self._check_held()
                return []
            data = bytes(self._held)
            self._held.clear()
        requests: list[Request] = []
        try:
            remaining_data = self._take_requests(data, requests)
        except ProtocolError as failure:
            self._fail(failure)
            return requests
        if remaining_data or self._count:
            self._held += remaining_data
            self._check_held()
        return requests

    def _continue_reading(self) -> list[Request]:
        """Continue reading the bytes that the last call left unread."""
        requests: list[Request] = []
        data, position = self.unread, self._position
        self.unread, self._position = b"", 0
        try:
            self._held += self._take_strictly(data, position, requests)
        except ProtocolError as failure:
            self._fail(failure)
            return requests
        self._check_held()
        return requests

    def _fail(self, failure: ProtocolError) -> None:
        # Its traceback refers to this parser: a cycle that only the garbage collector would free.
        self.failure = failure.with_traceback(None)
        self._held.clear()
        self._arguments, self._argument_bytes = [], 0
        self.unread, self._position = b"", 0

    def _check_held(self) -> None:
        if len(self._held) + self._argument_bytes > self.limits.held:
            self._fail(TooLongError())

    # The steps: each appends to `requests` what it takes from the front of the data, and returns the remaining bytes.

    def _take_requests(self, data: bytes, requests: list[Request]) -> bytes:
        """Take all complete commands. Raises ProtocolError."""
        if self.limits.unauthenticated:
            return self._take_strictly(data, 0, requests)
        if self._count:
            position = self._take_arguments(data, 0, requests)
            if self._count:
                return self._take_strictly(data, position, requests)
            data = data[position:]
        if len(data) >= SHORTEST:
            data = self._take_batches(data, requests)
        if data[:1] == b"*":
            if len(data) >= PIPELINED:
                data = data[whole_commands(data, requests, self.limits) :]
            elif (arguments := _one_command(data)) is not None:
                requests.append(arguments)
                return b""
        return self._take_strictly(data, 0, requests)

    def _take_batches(self, data: bytes, requests: list[Request]) -> bytes:
        """Take batches of XADDs, and the few commands before each of them."""
        while len(data) >= SHORTEST and data[0] == _ASTERISK:
            batch = self._first_batch(data)
            if batch is None:
                remaining_data = self._take_until_batch(data, requests)
                if len(remaining_data) < len(data):
                    data = remaining_data
                    batch = self._first_batch(data)
            if batch is None:
                break
            requests.append(batch)
            data = data[len(batch.raw) :]
            if len(batch.raw) < _LONG_BATCH:
                break  # searching for each of many short batches costs more than it gains
        return data

    def _first_batch(self, data: bytes) -> XaddBatch | None:
        """Return the batch at the start of the data, if there is one."""
        shape = self._shape
        if shape is None or not data.startswith(shape.prefix):
            if self._shapes is None:
                return None
            shape = self._shapes.learn(data)
            if shape is None:
                return None
            self._shape = shape
        return find_batch(shape, data)

    def _take_until_batch(self, data: bytes, requests: list[Request]) -> bytes:
        """Take the few commands before the next batch of the last shape: MULTI before the XADDs, or EXEC and MULTI
        between two transactions. Takes nothing if the shape's prefix lies within an argument.
        """
        if self._shape is None:
            return data
        border = data.find(self._shape.prefix, 1, _BETWEEN_BATCHES)
        if border < 0:
            return data
        commands: list[Request] = []
        if whole_commands(data[:border], commands, self.limits) != border:
            return data
        requests += commands
        return data[border:]

    def _take_strictly(self, data: bytes, position: int, requests: list[Request]) -> bytes:
        """Take commands one by one from this position, and the complete arguments of an unfinished command."""
        self._needed_bytes = 0
        size = len(data)
        stop_at_login = self.limits.unauthenticated
        while position < size and self._steps > 0 and not (stop_at_login and requests and may_log_in(requests[-1])):
            if not self._count:
                end = (
                    self._take_count(data, position)
                    if data[position] == _ASTERISK
                    else take_inline(data, position, requests)
                )
                if end < 0:
                    return data[position:]
                if not self._count:
                    self._steps -= 1 + (end - position) // _BYTES_PER_STEP
                position = end
            if self._count:
                position = self._take_arguments(data, position, requests)
                if self._count and self._steps > 0:
                    return data[position:]
        if position < size:
            self.unread, self._position = data, position
        return b""

    def _take_count(self, data: bytes, position: int) -> int:
        """Read the first line of a command. Return the position behind it, -1 if the line is not complete."""
        line = data.find(b"\r\n", position, position + MAX_INLINE + 2)
        if line < 0:
            if len(data) - position > MAX_INLINE:
                raise ProtocolError("too big mbulk count string")
            return -1
        count = _length(data[position + 1 : line])
        if count is None or count > MAX_ARGUMENTS:
            raise ProtocolError("invalid multibulk length")
        if count > self.limits.arguments:
            raise ProtocolError("unauthenticated multibulk length")
        if count > 0:
            self._count, self._arguments = count, []
        return line + 2

    def _take_arguments(self, data: bytes, position: int, requests: list[Request]) -> int:
        """Read arguments of the unfinished command and finish it with the last one.

        Return the position of unused bytes.
        """
        arguments, size, longest = self._arguments, len(data), self.limits.bulk
        missing, steps = self._count - len(arguments), self._steps
        for _ in range(missing if missing < steps else steps):
            line = data.find(b"\r\n", position, position + MAX_INLINE + 2)
            if line < 0:
                if position < size and data[position] != _DOLLAR:
                    raise ProtocolError(f"expected '$', got '{chr(data[position])}'")
                if size - position > MAX_INLINE:
                    raise ProtocolError("too big bulk count string")
                self._needed_bytes = 0
                return position
            if data[position] != _DOLLAR:
                raise ProtocolError(f"expected '$', got '{chr(data[position])}'")
            length = _length(data[position + 1 : line])
            if length is None or length < 0 or length > longest:
                if length is not None and length > longest and self.limits.unauthenticated:
                    raise ProtocolError("unauthenticated bulk length")
                raise ProtocolError("invalid bulk length")
            end = line + 2 + length
            if end + 2 > size:
                self._needed_bytes = end + 2 - position
                return position
            arguments.append(data[line + 2 : end])
            self._argument_bytes += length + _PER_ARGUMENT
            position = end + 2
        self._steps = steps - missing
        if missing > steps:
            return position
        requests.append(arguments)
        self._count = self._argument_bytes = 0
        return position


def _one_command(data: bytes) -> list[bytes] | None:
    """Return the arguments if the data is exactly one command in canonical form; None: not recognised.

    The data is split at line ends. Every second line must be the header of the line after it, which proves the form.
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
