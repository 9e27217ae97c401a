"""Idempotent adds: which message of which producer became which entry (XADD IDMP and IDMPAUTO).

    producers   producer id → { message id → entry id }     the oldest message first

A producer that is not sure whether its XADD arrived sends it again under the same message id, and gets the id of the
entry that is already there. What is remembered is bounded: so many messages for each producer, each for so many seconds
after the time in its entry's id. Redis looks for what has run out ten times a second, so this is done no oftener here.

Source: XADD, XCFGSET, XIDMPRECORD in Redis' command reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

MAX_DURATION = 86_400
MAX_SIZE = 10_000
_PAUSE = 100  # milliseconds between two looks for what has run out


class Idempotence:
    """The memory of one stream."""

    __slots__ = ("_next_look", "added", "duplicates", "duration", "max_size", "producers")

    def __init__(self, duration: int, max_size: int) -> None:
        self.duration = duration  # seconds
        self.max_size = max_size  # messages of one producer
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self.added = 0  # messages ever remembered
        self.duplicates = 0  # adds that were recognised
        self._next_look = 0

    def find(self, producer: bytes, message: bytes) -> int | None:
        """The entry that this message became. Makes the producer known."""
        return self.producers.setdefault(producer, {}).get(message)

    def remember(self, producer: bytes, message: bytes, entry_id: int) -> None:
        """This message became this entry; the producer's oldest message may be forgotten for it."""
        messages = self.producers.setdefault(producer, {})
        messages[message] = entry_id
        self.added += 1
        if len(messages) > self.max_size:
            del messages[next(iter(messages))]

    def configure(self, duration: int | None, max_size: int | None) -> bool:
        """Set the bounds (XCFGSET). A change forgets everything; False when nothing has changed."""
        before = self.duration, self.max_size
        self.duration = self.duration if duration is None else duration
        self.max_size = self.max_size if max_size is None else max_size
        if (self.duration, self.max_size) == before:
            return False
        self.producers.clear()
        return True

    def forget_old(self, now: int) -> None:
        """Forget what has run out at this time in Unix milliseconds, and producers without messages."""
        if not self.producers or now < self._next_look:
            return
        self._next_look = now + _PAUSE
        latest = now - self.duration * 1000
        for producer, messages in list(self.producers.items()):
            while messages and messages[oldest := next(iter(messages))] >> 64 <= latest:
                del messages[oldest]
            if not messages:
                del self.producers[producer]

    def tracked(self) -> int:
        """How many messages are remembered."""
        return sum(map(len, self.producers.values()))


def message_of(pairs: Sequence[bytes]) -> bytes:
    """The message id that IDMPAUTO makes of fields and values, in whatever order the fields come."""
    digest = blake2b(digest_size=16)
    for field, value in sorted(zip(pairs[::2], pairs[1::2], strict=True)):
        digest.update(b"%d:%b%d:%b" % (len(field), field, len(value), value))
    return digest.digest()
