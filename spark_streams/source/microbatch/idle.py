"""An idle query. Spark asks it for new entries a hundred times a second; as long as there are none, the server is asked
only once: by a blocking read (wire.blocked_read) of all streams, which the next entry ends.

What no entry announces is looked for when it is due: a group that was changed, a retry whose time has come, entries
that a dead consumer left, the end of maxTriggerDelay. Then the trigger asks the server as always.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from spark_streams.errors import RStreamError
from spark_streams.model.ids import StreamId
from spark_streams.source.limits import Limits
from spark_streams.source.offset import Offset
from spark_streams.wire.address.address import Address
from spark_streams.wire.blocked_read import BlockedRead

_MARGIN = 0.05  # seconds that the server is given to end a blocking read by itself
_SHORTEST = 0.01  # seconds that the first call after a batch waits; each one after it waits twice as long
_log = logging.getLogger("spark_streams.source")


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
        """Nothing above the checkpoint was there to read. last: the last ID of each stream then; seconds: until the
        server must be asked again, whether there is an entry or not."""
        if seconds <= 0:
            return
        if self._read.refused is None:
            try:
                self._read.begin(last, seconds)
            except RStreamError:
                self._read.close()  # the next trigger meets the same error, and says so
                return
        self._since, self._until = checkpoint, self._now() + seconds + _MARGIN

    def batch_ran(self) -> None:
        """Spark has run a batch. If the query has other sources, the batch may be theirs alone, and they may have more:
        the next calls wait only briefly, because Spark asks one source after the other."""
        self._wait = 0.0

    def lasts(self, checkpoint: Offset) -> bool:
        """Whether there is still nothing to ask the server for. Waits for a moment (Limits.idle_wait) at most."""
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
                    "this user may not use XREAD (%s): while there are no entries the query asks the server %.0f times "
                    "a second; grant +xread to make idle queries free", self._read.refused, 1 / self._longest,
                )  # fmt: skip
        return self._since is not None

    def close(self) -> None:
        """Close the connections that wait."""
        self._since = None
        self._read.close()
