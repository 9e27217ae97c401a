"""Settling beside the tasks of the next batch: XACK costs the driver time that it would otherwise stand still in."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

from spark_streams.source.group import Membership
from spark_streams.source.pending import PendingRange, settle
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection


class Settler:
    """Settles what it is given, in a thread and over a connection of its own, both made when first needed.

    Only what is in the commit log may be submitted (FACTS S4). Settling may be cut off at any point, by SIGKILL too:
    what is left is settled when it is submitted again, or with anything above it. For use by one thread. A copy for
    another process (pickle) starts anew.
    """

    def __init__(self, address: Address, member: Membership) -> None:
        self._address = address
        self._member = member
        self._jobs: queue.SimpleQueue[Sequence[PendingRange] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        self._submitted = 0
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Settler, (self._address, self._member)

    def submit(self, ranges: Sequence[PendingRange]) -> None:
        """Settle these, after what was submitted before."""
        if not ranges:
            return
        if self._thread is None:
            # A daemon: a process that ends does not wait for it.
            self._thread = threading.Thread(target=self._work, name="rstream-settle", daemon=True)
            self._thread.start()
        self._jobs.put(ranges)
        self._submitted += 1

    def wait(self) -> int:
        """Until all that was submitted is settled; how many entries that were since the last call.

        Raises what went wrong in the thread, the first error where there are several: GroupMissingError, ServerError.
        """
        settled = 0
        errors: list[Exception] = []
        while self._submitted:
            result = self._done.get()
            self._submitted -= 1
            if isinstance(result, Exception):
                errors.append(result)
            else:
                settled += result
        if errors:
            raise errors[0]
        return settled

    def close(self) -> None:
        """Finish what was submitted, and end the thread; calling it twice is harmless."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        server: Connection | None = None
        while (ranges := self._jobs.get()) is not None:
            try:
                if server is None:
                    server = Connection(self._address)
                self._done.put(settle(server, self._member, ranges))
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                if server is not None:
                    server.close()  # in the middle of a reply, perhaps
                    server = None
                self._done.put(error)
        if server is not None:
            server.close()
