"""An idle query. Spark asks it for new entries a hundred times a second. The query asks the server only once, with a
blocking read of all streams (wire.blocked_read). The next entry ends that read.

Other events do not end it: a client changes a group, a retry is due, a consumer dies and leaves entries, the time of
maxTriggerDelay is over. For these, the trigger asks the server when the first of them is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.blocked_read import BlockedRead

_MARGIN = 0.05  # seconds that the server is given to end a blocking read by itself
_SHORTEST = 0.01  # seconds that the first call after a batch waits; each one after it waits twice as long
_log = logging.getLogger("spark_streams.connector.source")


class Idle:
    """The idle times of one query. now: a monotonic clock, in seconds; sleep: waits that many seconds."""

    def __init__(
        self,
        address: Address,
        now: Callable[[], float],
        limits: Limits,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = BlockedRead(address)
        self._now, self._sleep = now, sleep
        self._longest = limits.idle_wait
        self._wait = 0.0  # seconds that the next call waits
        self._since: Offset | None = None  # the checkpoint at which the query is idle
        self._until = 0.0

    def begin(self, checkpoint: Offset, last: Mapping[str, StreamId], seconds: float) -> None:
        """Begin an idle time: no stream had an entry above the checkpoint. last: the last ID of each stream then;
        seconds: until the trigger must ask the server again, with or without a new entry."""
        if seconds <= 0:
            return
        if self._read.refused is None:
            try:
                self._read.begin(last, seconds)
            except RStreamError:
                self._read.close()  # the next trigger meets the same error, and raises it
                return
        self._since, self._until = checkpoint, self._now() + seconds + _MARGIN

    def batch_ran(self) -> None:
        """Make the next calls wait only briefly, because Spark has run a batch. Another source of the query may have
        more entries, and Spark asks one source after the other."""
        self._wait = 0.0

    def lasts(self, checkpoint: Offset) -> bool:
        """Wait for a new entry, at most Limits.idle_wait. Return whether the query is still idle: False means that the
        trigger must ask the server."""
        if self._since is None or self._since != checkpoint or self._now() >= self._until:
            self._since = None
            return False
        self._wait = min(self._longest, max(_SHORTEST, 2 * self._wait))
        if self._read.refused is not None:
            self._sleep(self._wait)
            self._since = None
        elif self._read.is_over(self._wait):
            self._since = None
            if self._read.refused is not None:
                _log.warning(
                    "an idle query asks the server %.0f times a second, because its user has no right to XREAD (%s). "
                    "Grant +xread to make idle queries free", 1 / self._longest, self._read.refused,
                )  # fmt: skip
        return self._since is not None

    def close(self) -> None:
        """Close the connections of the blocking read."""
        self._since = None
        self._read.close()
