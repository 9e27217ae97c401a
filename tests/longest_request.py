"""The longest request of a run of tests: no command but XADD has more than MOST_ARGUMENTS.

Every connection of this process is heard where it sends. (Workers of Spark are other processes: the same code runs
here without Spark.)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from unittest import mock

from spark_streams.connector.wire.parts import MOST_ARGUMENTS
from spark_streams.connector.wire.sockets import Duplex
from tools.side_by_side import LONGEST

_FEWEST = 100  # arguments: shorter requests are not looked at
_SMALLEST = len(b"$0\r\n\r\n") * _FEWEST  # bytes
_FIRST = re.compile(rb"\*(\d{3,})\r\n\$\d+\r\n([A-Z]+)\r\n")
_FURTHER = re.compile(rb"\r\n\*(\d{3,})\r\n\$\d+\r\n([A-Z]+)\r\n")
_WITHOUT_BOUND = b"XADD"  # an entry is one request


class Requests:
    """Requests that were heard. longest: (arguments, command) of the longest; too_long: those beyond the bound."""

    def __init__(self) -> None:
        self.longest = (0, "")
        self.too_long = list[tuple[int, str]]()

    def hear(self, data: bytes | memoryview) -> None:
        """Note the requests that these bytes begin."""
        if len(data) < _SMALLEST:
            return
        first = _FIRST.match(data)
        for found in [*([first] if first else []), *_FURTHER.finditer(data)]:
            request = int(found[1]), bytes(found[2]).decode()
            if found[2] != _WITHOUT_BOUND:
                self.longest = max(self.longest, request)
                self.too_long += [request] if request[0] > MOST_ARGUMENTS else []

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear every connection of this process."""
        send = Duplex.send

        def heard(duplex: Duplex, data: bytes | memoryview) -> None:
            self.hear(data)
            send(duplex, data)

        with mock.patch.object(Duplex, "send", heard):
            yield

    def taken(self) -> list[tuple[int, str]]:
        """Return the requests that were too long since the last call."""
        found, self.too_long = self.too_long, []
        return found

    def line(self) -> str:
        """What the end of a run says; empty if all requests were short."""
        return f"{LONGEST}{self.longest[0]:,} arguments ({self.longest[1]})" if self.longest[0] else ""
