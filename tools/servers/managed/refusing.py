"""A proxy that takes no request of more than so many arguments, as some managed servers do."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from spark_streams.operations.verify.relay import DOWN, READ, Relay, reset

# What the server gets in place of a refused request, so that its error comes in turn, and refuses a transaction.
REFUSED = b"*2\r\n$6\r\nCLIENT\r\n$18\r\nTOO-MANY-ARGUMENTS\r\n"


class RefusingProxy(Relay):
    """Passes requests on to the server at `url`, unless they have more than `most` arguments."""

    def __init__(self, url: str, most: int, port: int = 0) -> None:
        super().__init__(url, port)
        self._most = most
        self.longest: tuple[int, bytes] = (0, b"")  # arguments of the longest request so far, and its command
        self.refused = list[bytes]()  # the command of each refused request
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        if direction == DOWN:
            super()._pass_on(source, target, direction)
            return
        waiting = bytearray()
        with contextlib.suppress(OSError):  # the other side is gone, and both are closed
            while data := source.recv(READ):
                waiting += data
                passing = bytearray()
                for begin, end, words, command in _requests(waiting):
                    self.longest = max(self.longest, (words, command))
                    if words > self._most:
                        self.refused.append(command)
                    passing += REFUSED if words > self._most else waiting[begin:end]
                    done = end
                if passing:
                    del waiting[:done]
                    target.sendall(passing)
        reset(source)
        reset(target)


def _requests(data: bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield begin, end, number of arguments and command of each complete request."""
    end = 0
    while (line := data.find(b"\r\n", end)) >= 0:
        begin, words, command = end, int(data[end + 1 : line]), b""
        at = line + 2
        for word in range(words):
            if (line := data.find(b"\r\n", at)) < 0:
                return
            size = int(data[at + 1 : line])
            at = line + 2 + size + 2
            if word == 0:
                command = bytes(data[line + 2 : at - 2]).upper()
        if at > len(data):
            return
        end = at
        yield begin, end, words, command
