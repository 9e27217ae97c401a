"""Requests: from bytes that arrive to lists of arguments.

Every connection's parser knows where each command begins, and holds no more of an unfinished one than has arrived. What
has arrived goes through these steps; each takes from its front what it can read, and the next one gets what is behind:

    an unfinished command  finished, if its end has come

    a batch of XADDs       taken as one (xadd_batch.py)
    whole commands, many   hiredis' C reader, four times as fast (pipeline.py)
    one whole command      split at the line ends (`_one_command`)
    everything else        read strictly: inline commands (inline.py), the beginning of an unfinished one (it goes on
                           where it stopped, so that a request in single bytes costs its length, not its square), and
                           malformed ones, which are refused with Redis' own words

Source: the RESP specification, Redis' `processMultibulkBuffer`.
"""

from __future__ import annotations

from spark_streams.engine.resp.inline import take_inline
from spark_streams.engine.resp.pipeline import whole_commands
from spark_streams.engine.resp.replies import HEADERS
from spark_streams.engine.resp.requests import (
    MAX_ARGUMENTS,
    MAX_INLINE,
    ProtocolError,
    Request,
    RequestLimits,
    TooLongError,
    may_log_in,
)
from spark_streams.engine.resp.xadd_batch import SHORTEST, Shape, Shapes, XaddBatch, find_batch

PIPELINED = 4096  # bytes at hand from which on hiredis is worth its while
_LONG_BATCH = 16384  # bytes of a batch behind which another one is looked for
_BETWEEN_BATCHES = 8192  # bytes of other commands between two batches
_ASTERISK, _DOLLAR = b"*$"  # a command begins with the one, an argument with the other
_PER_ARGUMENT = 50  # bytes that Python takes for each argument, roughly
_STEPS = 1000  # lines and arguments that one call reads strictly: about a millisecond
_BYTES_PER_STEP = 64  # of a line


class RequestParser:
    """One connection's parser: `feed` it bytes, get commands. `limits` may be replaced between two calls.

    A call that must read strictly stops after about a millisecond. While there are `unread` bytes, call `feed(b"")`
    before you feed others. Before AUTH it stops behind each AUTH and HELLO, too: what follows may be longer. With
    `shapes`, neighbouring XADDs that differ only in their values may come as one XaddBatch.
    """

    __slots__ = ("_arguments", "_at", "_count", "_held", "_shape", "_shapes", "_steps", "_taken", "_wanted",
                 "failure", "limits", "unread")  # fmt: skip

    def __init__(self, limits: RequestLimits | None = None, shapes: Shapes | None = None) -> None:
        self._shapes = shapes
        self._shape: Shape | None = None  # of this connection's last batch
        self.limits = limits or RequestLimits()
        self.failure: ProtocolError | None = None  # set once; the commands before it are still good
        self._count = 0  # how many arguments the unfinished command will have; 0 between commands
        self._arguments: list[bytes] = []  # those of them that have arrived
        self._taken = 0  # about the bytes of memory that they take
        self._held = bytearray()  # arrived and not used: an unfinished line or argument
        self._wanted = 0  # bytes of `_held` without which nothing can be finished
        self.unread = b""  # bytes of which the last call read those before `_at`; empty if it read all
        self._at = 0
        self._steps = 0  # that this call may still take

    @property
    def held(self) -> int:
        """About how many bytes the unfinished request, and what has not been read yet, take."""
        return len(self._held) + self._taken + len(self.unread) - self._at

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes in; the commands that are complete by now. After a malformed one `failure` is set."""
        self._steps = _STEPS
        if self.unread:
            assert not data, "the rest of the last bytes has to be taken first"
            return self._go_on()
        if self._held:
            # All that is held is an unfinished line, or an argument of which so many bytes are wanted.
            unfinished = self._wanted == 0 and b"\n" not in data and len(self._held) + len(data) <= MAX_INLINE
            self._held += data
            if unfinished or len(self._held) < self._wanted:
                self._check_held()
                return []
            data = bytes(self._held)
            self._held.clear()
        requests: list[Request] = []
        try:
            rest = self._take_requests(data, requests)
        except ProtocolError as failure:
            self._fail(failure)
            return requests
        if rest or self._count:
            self._held += rest
            self._check_held()
        return requests

    def _go_on(self) -> list[Request]:
        """More of the bytes that the last call left."""
        requests: list[Request] = []
        data, at = self.unread, self._at
        self.unread, self._at = b"", 0
        try:
            self._held += self._take_strictly(data, at, requests)
        except ProtocolError as failure:
            self._fail(failure)
            return requests
        self._check_held()
        return requests

    def _fail(self, failure: ProtocolError) -> None:
        # Its traceback holds this parser: a circle, which only the garbage collector would free.
        self.failure = failure.with_traceback(None)
        self._held.clear()
        self._arguments, self._taken = [], 0
        self.unread, self._at = b"", 0

    def _check_held(self) -> None:
        if len(self._held) + self._taken > self.limits.held:
            self._fail(TooLongError())

    # The steps: each appends to `requests` what it takes from the front of the data, and gives back what is behind it.

    def _take_requests(self, data: bytes, requests: list[Request]) -> bytes:
        """All that is complete. Raises ProtocolError."""
        if self.limits.unauthenticated:
            return self._take_strictly(data, 0, requests)
        if self._count:
            at = self._take_arguments(data, 0, requests)
            if self._count:
                return self._take_strictly(data, at, requests)
            data = data[at:]
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
        """Batches of XADDs, and the few commands that stand before each of them."""
        while len(data) >= SHORTEST and data[0] == _ASTERISK:
            batch = self._first_batch(data)
            if batch is None:
                rest = self._take_until_batch(data, requests)
                if len(rest) < len(data):
                    data = rest
                    batch = self._first_batch(data)
            if batch is None:
                break
            requests.append(batch)
            data = data[len(batch.raw) :]
            if len(batch.raw) < _LONG_BATCH:
                break  # to look for each of many short batches costs more than it gains
        return data

    def _first_batch(self, data: bytes) -> XaddBatch | None:
        """The batch with which the data begins."""
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
        """The few commands before what looks like another batch of the last one's shape: MULTI before the XADDs, or
        EXEC and MULTI between those of two transactions. Nothing, if that lies within an argument."""
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

    def _take_strictly(self, data: bytes, at: int, requests: list[Request]) -> bytes:
        """Command by command from this place on, and of an unfinished one its complete arguments."""
        self._wanted = 0
        size = len(data)
        alone = self.limits.unauthenticated
        while at < size and self._steps > 0 and not (alone and requests and may_log_in(requests[-1])):
            if not self._count:
                end = self._take_count(data, at) if data[at] == _ASTERISK else take_inline(data, at, requests)
                if end < 0:
                    return data[at:]
                if not self._count:
                    self._steps -= 1 + (end - at) // _BYTES_PER_STEP
                at = end
            if self._count:
                at = self._take_arguments(data, at, requests)
                if self._count and self._steps > 0:
                    return data[at:]
        if at < size:
            self.unread, self._at = data, at
        return b""

    def _take_count(self, data: bytes, at: int) -> int:
        """The line with which a command begins; where it ends, -1 if it is not whole yet."""
        line = data.find(b"\r\n", at, at + MAX_INLINE + 2)
        if line < 0:
            if len(data) - at > MAX_INLINE:
                raise ProtocolError("too big mbulk count string")
            return -1
        count = _length(data[at + 1 : line])
        if count is None or count > MAX_ARGUMENTS:
            raise ProtocolError("invalid multibulk length")
        if count > self.limits.arguments:
            raise ProtocolError("unauthenticated multibulk length")
        if count > 0:
            self._count, self._arguments = count, []
        return line + 2

    def _take_arguments(self, data: bytes, at: int, requests: list[Request]) -> int:
        """Arguments of the unfinished command, which is finished with its last one; where the unused bytes begin."""
        arguments, size, longest = self._arguments, len(data), self.limits.bulk
        missing, steps = self._count - len(arguments), self._steps
        for _ in range(missing if missing < steps else steps):
            line = data.find(b"\r\n", at, at + MAX_INLINE + 2)
            if line < 0:
                if at < size and data[at] != _DOLLAR:
                    raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
                if size - at > MAX_INLINE:
                    raise ProtocolError("too big bulk count string")
                self._wanted = 0
                return at
            if data[at] != _DOLLAR:
                raise ProtocolError(f"expected '$', got '{chr(data[at])}'")
            length = _length(data[at + 1 : line])
            if length is None or length < 0 or length > longest:
                if length is not None and length > longest and self.limits.unauthenticated:
                    raise ProtocolError("unauthenticated bulk length")
                raise ProtocolError("invalid bulk length")
            end = line + 2 + length
            if end + 2 > size:
                self._wanted = end + 2 - at
                return at
            arguments.append(data[line + 2 : end])
            self._taken += length + _PER_ARGUMENT
            at = end + 2
        self._steps = steps - missing
        if missing > steps:
            return at
        requests.append(arguments)
        self._count = self._taken = 0
        return at


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
