"""The output of one connection: replies since the last flush, and bytes that the kernel has not accepted yet."""

from __future__ import annotations

from spark_streams.engine.server.listeners import Channel
from spark_streams.engine.settings.table import OutputLimit


class Output:
    """fresh: replies since the last flush. unsent: bytes that the kernel has not accepted. late: bytes behind those."""

    __slots__ = ("_channel", "_late", "_slow_since", "fresh", "unsent")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.fresh: list[bytes] = []
        self.unsent = memoryview(b"")
        self._late = bytearray()
        self._slow_since = 0.0  # time.monotonic() since when the soft limit is exceeded; 0: it is not

    @property
    def waiting(self) -> int:
        """Number of bytes that the kernel has not accepted."""
        return len(self.unsent) + len(self._late)

    def send(self) -> None:
        """Send what the kernel accepts. Raises OSError if the peer has disconnected."""
        if self.fresh:
            data = b"".join(self.fresh) if len(self.fresh) > 1 else self.fresh[0]
            self.fresh.clear()
            if self.unsent:
                self._late += data
            else:
                # Without a memoryview: the kernel accepts nearly every reply at once.
                sent = self._send(data)
                if sent < len(data):
                    self.unsent = memoryview(data)[sent:]
                return
        while self.unsent:
            sent = self._send(self.unsent)
            if not sent:
                return
            self.unsent = self.unsent[sent:]
            if not self.unsent and self._late:
                self.unsent, self._late = memoryview(self._late), bytearray()

    def _send(self, data: bytes | memoryview) -> int:
        """Return how many bytes the kernel has accepted."""
        try:
            return self._channel.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def drop(self) -> None:
        """Discard all output: the peer has disconnected."""
        self.fresh.clear()
        self.unsent, self._late = memoryview(b""), bytearray()

    def is_read_too_slowly(self, limit: OutputLimit, moment: float) -> bool:
        """Whether more output waits than the limit allows, or for too long."""
        waiting = self.waiting
        too_slow = bool(limit.hard) and waiting > limit.hard
        if not limit.soft or waiting <= limit.soft:
            self._slow_since = 0.0
        elif not self._slow_since:
            self._slow_since = moment
        elif moment - self._slow_since > limit.seconds:
            too_slow = True
        return too_slow
