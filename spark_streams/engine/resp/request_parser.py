"""Requests: from bytes that arrive to lists of arguments.

Every connection's parser knows where each command begins, and holds no more of an unfinished one than has arrived:

    a run of XADDs         taken as one (xadd_batch.py)
    whole commands, many   hiredis' C reader, four times as fast (pipeline.py)
    one whole command      split at the line ends (`_one_command`)
    everything else        the strict parser: inline commands (inline.py), unfinished ones (it goes on where it stopped,
                           so that a request in single bytes costs its length, not its square), and malformed ones,
                           which it refuses with Redis' own words

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
)
from spark_streams.engine.resp.xadd_batch import SHORTEST, Run, Shape, Shapes, find_run

PIPELINED = 4096  # bytes at hand from which on hiredis is worth its while
_LONG_RUN = 16384  # bytes of a run behind which another one is looked for
_BETWEEN_RUNS = 8192  # bytes of other commands between two runs
_PER_ARGUMENT = 50  # bytes that Python takes for each argument, roughly


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
                        start = whole_commands(data, found, self.limits)
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
        if whole_commands(data[:border], few, self.limits) != border:
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
                    end = take_inline(data, at, found)
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
