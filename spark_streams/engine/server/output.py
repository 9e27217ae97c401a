"""The replies of one connection on their way out: those since the last flush, and what the kernel has not taken yet."""

from __future__ import annotations

from spark_streams.engine.server.listeners import Channel
from spark_streams.engine.settings.table import OutputLimit


class Output:
    """fresh: replies since the last flush; unsent: what the kernel has not taken, and late: what came after that."""

    __slots__ = ("_channel", "_late", "_slow_since", "fresh", "unsent")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.fresh: list[bytes] = []
        self.unsent = memoryview(b"")
        self._late = bytearray()
        self._slow_since = 0.0  # since when more is unsent than the soft limit; 0: it is not

    @property
    def waiting(self) -> int:
        """Bytes that the kernel has not taken."""
        return len(self.unsent) + len(self._late)

    def send(self) -> None:
        """Send what the kernel takes. Raises OSError when the other side is gone."""
        if self.fresh:
            data = b"".join(self.fresh) if len(self.fresh) > 1 else self.fresh[0]
            self.fresh.clear()
            if self.unsent:
                self._late += data
            else:
                self.unsent = memoryview(data)
        while self.unsent:
            try:
                sent = self._channel.send(self.unsent)
            except (BlockingIOError, InterruptedError):
                return
            self.unsent = self.unsent[sent:]
            if not self.unsent and self._late:
                self.unsent, self._late = memoryview(self._late), bytearray()

    def drop(self) -> None:
        """Nobody is there any more to read it."""
        self.fresh.clear()
        self.unsent, self._late = memoryview(b""), bytearray()

    def is_read_too_slowly(self, limit: OutputLimit, moment: float) -> bool:
        """Whether more waits than the limit allows, or for longer."""
        waiting = self.waiting
        too_slow = bool(limit.hard) and waiting > limit.hard
        if not limit.soft or waiting <= limit.soft:
            self._slow_since = 0.0
        elif not self._slow_since:
            self._slow_since = moment
        elif moment - self._slow_since > limit.seconds:
            too_slow = True
        return too_slow
