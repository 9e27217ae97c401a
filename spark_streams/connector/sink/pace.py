"""Pace of a write (option rowsPerSecond): all its tasks together send at most this many rows a second.

    rstream:pace:<name>    <next> <now>: when the next rows may be sent, and when this was written, in microseconds of
                           the server's clock

Before a task sends rows, it adds the time that they take at this rate, and waits until the time that was in the key. If
the server's clock was set back, or a master with another clock has taken over, `now` is in the future. Then both times
move with the clock, so a wait is never longer than the rows that are ahead take at this rate.
"""

from __future__ import annotations

import time

from spark_streams.base.numbers import parse_number
from spark_streams.connector.keys import pace_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.replies import milliseconds, transact
from spark_streams.connector.wire.session import Session

_CHUNKS = 10  # per second
_EXPIRY = 60_000  # milliseconds that the key lives longer than the rows that it was set for


class Pace:
    """Pace of a write, for one of its tasks. rate: rows per second of all tasks, None: no limit."""

    def __init__(self, address: Address, name: str, rate: int | None) -> None:
        self._key = pace_key(name)
        self._rate = rate
        # A connection of its own: replies may be outstanding on the task's, and EXEC would end its WATCH.
        self._session = Session(address, is_known=True)

    def chunk_size(self, size: int) -> int:
        """Return `size`, or fewer rows if that many would take more than a tenth of a second."""
        return size if self._rate is None else min(size, -(-self._rate // _CHUNKS))

    def wait(self, rows: int) -> None:
        """Wait until this many rows may be sent. Raises the errors of Session.run."""
        if self._rate is None or not rows:
            return
        cost = rows * 1_000_000 // self._rate
        while (pause := self._session.run(lambda server: self._take_turn(server, cost))) is None:
            pass
        time.sleep(pause / 1_000_000)

    def close(self) -> None:
        self._session.close()

    def _take_turn(self, server: Server, cost: int) -> int | None:
        """Return how long to wait, in microseconds; None if another task was faster."""
        node = server.connection_for(self._key)
        _, value, clock = node.execute_all([("WATCH", self._key), ("GET", self._key), ("TIME",)])
        now = milliseconds(clock) * 1000
        start = max(now, _next_start(value or b"", now))
        expiry = (start + cost - now) // 1000 + _EXPIRY
        done = transact(node, [("SET", self._key, f"{start + cost} {now}", "PX", expiry)])
        return None if done is None else start - now


def _next_start(value: bytes, now: int) -> int:
    """Return when the next rows may be sent by the clock that shows `now`, 0 if the key has no such times."""
    times = [parse_number(word) for word in value.split(b" ")]
    if len(times) != 2 or None in times:
        return 0
    start, written = (time or 0 for time in times)
    return start - max(0, written - now)
