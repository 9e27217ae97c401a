"""Idempotent adds: which message of which producer became which entry (XADD IDMP and IDMPAUTO).

    producers   producer id → { message id → entry id }     the oldest message first

A producer that does not know whether its XADD arrived repeats it with the same message ID, and gets the ID of the
existing entry. The memory is limited: a number of messages for each producer, each for some seconds after the time in
its entry's ID. Redis removes expired messages ten times a second, so they are removed no more often here.

Source: XADD, XCFGSET, XIDMPRECORD in Redis' command reference.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from spark_streams.base.ids import U64_MAX

MAX_DURATION = 86_400
MAX_SIZE = 10_000
_DEFAULT = (100, 100)  # default seconds and messages
# Approximate bytes of memory in addition to those of the text.
_PER_PRODUCER, _PER_MESSAGE = 300, 200
_PAUSE = 100  # milliseconds between two removals of expired messages


class Idempotence:
    """The remembered messages of one stream."""

    __slots__ = ("_next_expiry", "added", "duplicates", "duration", "max_size", "memory", "producers")

    def __init__(self, duration: int, max_size: int) -> None:
        self.duration = duration  # seconds
        self.max_size = max_size  # messages of one producer
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self.memory = 0  # approximate bytes of the producers and their messages
        self.added = 0  # messages ever remembered
        self.duplicates = 0  # duplicate adds
        self._next_expiry = 0

    @property
    def used(self) -> bool:
        """Whether there is anything to store or show."""
        return bool(self.added or self.duplicates or self.producers) or (self.duration, self.max_size) != _DEFAULT

    def find(self, producer: bytes, message: bytes) -> int | None:
        """Return the entry of this message, or None. Registers the producer."""
        return self._messages(producer).get(message)

    def _messages(self, producer: bytes) -> dict[bytes, int]:
        """Return the messages of a producer. Registers the producer."""
        messages = self.producers.get(producer)
        if messages is None:
            messages = self.producers[producer] = {}
            self.memory += len(producer) + _PER_PRODUCER
        return messages

    def restore(self, producer: bytes, messages: dict[bytes, int]) -> None:
        """Store the messages of a new producer, the oldest first."""
        self._messages(producer).update(messages)
        self.memory += sum(map(len, messages)) + _PER_MESSAGE * len(messages)

    def remember(self, producer: bytes, message: bytes, entry_id: int) -> None:
        """Store the entry of this message; above the limit, the producer's oldest message is removed."""
        messages = self._messages(producer)
        if message not in messages:
            self.memory += len(message) + _PER_MESSAGE
        messages[message] = entry_id
        self.added += 1
        if len(messages) > self.max_size:
            self.forget(producer, next(iter(messages)))

    def forget(self, producer: bytes, message: bytes) -> None:
        """Remove this message, which must be remembered."""
        del self.producers[producer][message]
        self.memory -= len(message) + _PER_MESSAGE

    def configure(self, duration: int | None, max_size: int | None) -> bool:
        """Set the limits (XCFGSET). A change clears the memory; False: nothing has changed."""
        before = self.duration, self.max_size
        self.duration = self.duration if duration is None else duration
        self.max_size = self.max_size if max_size is None else max_size
        if (self.duration, self.max_size) == before:
            return False
        self.producers.clear()
        self.memory = 0
        return True

    def forget_old(self, now: int) -> None:
        """Remove expired messages, and producers without messages. now: Unix milliseconds."""
        if not self.producers or now < self._next_expiry:
            return
        self._next_expiry = now + _PAUSE
        latest = self.latest_forgotten(now)
        for producer, messages in list(self.producers.items()):
            while messages and messages[oldest := next(iter(messages))] >> 64 <= latest:
                self.forget(producer, oldest)
            if not messages:
                del self.producers[producer]
                self.memory -= len(producer) + _PER_PRODUCER

    def latest_forgotten(self, now: int) -> int:
        """Return the latest time of an entry whose message has expired, in Unix milliseconds."""
        return now - self.duration * 1000

    def tracked(self) -> int:
        """Return how many messages are remembered."""
        return sum(map(len, self.producers.values()))


def message_of(pairs: Sequence[bytes]) -> bytes:
    """Return the message ID that IDMPAUTO derives from fields and values, in any order of the fields; Redis' bytes.

    XXH3 in 128 bits of each pair, `field | length of the field 8, little endian | value`. The halves of all pairs are
    summed and xored; the xors, rotated by one bit, are xored crosswise with the sums (`createIdempotencyHash`).
    Raises ModuleNotFoundError.
    """
    import xxhash  # not a package of the base: only this function needs it

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
