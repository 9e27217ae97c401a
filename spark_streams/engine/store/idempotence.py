"""Idempotent adds: which message of which producer became which entry (XADD IDMP and IDMPAUTO).

    producers   producer id → { message id → entry id }     the oldest message first

A producer that is not sure whether its XADD arrived sends it again under the same message id, and gets the id of the
entry that is already there. What is remembered is bounded: so many messages for each producer, each for so many seconds
after the time in its entry's id. Redis looks for what has run out ten times a second, so this is done no oftener here.

Source: XADD, XCFGSET, XIDMPRECORD in Redis' command reference.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from spark_streams.model.ids import U64_MAX

MAX_DURATION = 86_400
MAX_SIZE = 10_000
_DEFAULT = (100, 100)  # seconds and messages, where neither the configuration nor XCFGSET says otherwise
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

    @property
    def used(self) -> bool:
        """Whether there is anything to tell of it."""
        return bool(self.added or self.duplicates or self.producers) or (self.duration, self.max_size) != _DEFAULT

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

    def forget(self, producer: bytes, message: bytes) -> None:
        """This message, which is remembered, is not any more."""
        del self.producers[producer][message]

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
        latest = self.latest_forgotten(now)
        for producer, messages in list(self.producers.items()):
            while messages and messages[oldest := next(iter(messages))] >> 64 <= latest:
                del messages[oldest]
            if not messages:
                del self.producers[producer]

    def latest_forgotten(self, now: int) -> int:
        """Messages whose entries have this time in their ids, or an earlier one, have run out."""
        return now - self.duration * 1000

    def tracked(self) -> int:
        """How many messages are remembered."""
        return sum(map(len, self.producers.values()))


def message_of(pairs: Sequence[bytes]) -> bytes:
    """The message id that IDMPAUTO makes of fields and values, in whatever order the fields come: Redis' own bytes.

    XXH3 in 128 bits of each pair, `field | length of the field 8, little endian | value`; the halves of all pairs are
    summed and xored, and what was xored, turned by one bit, goes crosswise over the sums (`createIdempotencyHash`).
    """
    sum_low = sum_high = xor_low = xor_high = 0
    for field, value in zip(pairs[::2], pairs[1::2], strict=True):
        digest = xxhash.xxh3_128_intdigest(b"%b%b%b" % (field, len(field).to_bytes(8, "little"), value))
        low, high = digest & U64_MAX, digest >> 64
        sum_low += low
        sum_high += high
        xor_low ^= low
        xor_high ^= high
    return struct.pack("<QQ", sum_low & U64_MAX ^ _turned(xor_high), sum_high & U64_MAX ^ _turned(xor_low))


def _turned(half: int) -> int:
    return half << 1 & U64_MAX | half >> 63
