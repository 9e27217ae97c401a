"""What a stranger writes: entries, keys and names that are made to end whoever reads them. Seeded.

The stranger may append to streams, make streams and groups, and write every key but those of a running query's own
bookkeeping. A sample of all that was found to end a reader is in NUMBERS, TEXTS and NAMES.
"""

from __future__ import annotations

import random

import redis

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, NAMES
from spark_streams.connector.keys import key_beside

HUGE = b"9" * 5_000
NUMBERS = [
    b"", b"0", b"1", b"-1", b"+1", b"007", b" 1", b"1_0", b"1.5", b"1e9", b"nan", b"inf", HUGE, b"9" * 19, b"9" * 20,
    b"18446744073709551616", "²".encode(), "٣".encode(), b"\xff", b"1\n2", b"\0",
]  # fmt: skip
TEXTS = [
    b"", b"x", b"\n", b"\r\n", b"\0", b"\xff\xfe", "\u202eevil".encode(), "\x9b31m".encode(), b"\x1b[2J", b"\x7f",
    b"[red]x[/red]", b"[/]", b"{", b"}", b"{}", b"%", b"%zz", b"pt:}x", b"a{}b", "²".encode(), b"x" * 10_240, b"*",
    b"[",
    b"<script>alert(1)</script>", "\ud800".encode("utf-8", "surrogatepass"), b"s", b"g", b"rstream:returned:{s}:g",
]  # fmt: skip
IDS = [
    b"",
    b"0-0",
    b"1-0",
    b"5",
    b"-",
    b"*",
    b"1-1-1",
    b"18446744073709551615-18446744073709551615",
    HUGE,
    HUGE + b"-1",
    "²-1".encode(),
]
TIMES = [b"", b"2026-01-01T00:00:00.000000Z", b"-0001-01-01", HUGE, b"\xff", b"9999999-99-99T99:99:99Z"]
_VALUES = {
    "id": IDS, "batch": NUMBERS, "deliveries": NUMBERS, "redrives": NUMBERS, "first-failed": TIMES, "last-failed": TIMES
}  # fmt: skip
_KINDS = (b"retry", b"returned", b"delays", b"redrive", b"shards", b"lease", b"dead")


class Stranger:
    """One, whose hand is guided by `chance`."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def text(self) -> bytes:
        """A text of any kind."""
        chance = self.chance
        if chance.random() < 0.15:
            return chance.randbytes(chance.randint(1, 12))
        return chance.choice(TEXTS if chance.random() < 0.7 else NUMBERS)

    def name(self) -> bytes:
        """The name of a stream: any, or one that looks like the product's own."""
        chance = self.chance
        if chance.random() < 0.5:
            return b"x" + self.text()
        kind = chance.choice(_KINDS)
        origin = chance.choice([b"{s}", b"{" + self.text() + b"}", self.text(), b"{}"])
        words = [b"rstream", kind, origin]
        words += [chance.choice([b"g", self.text()]) for _ in range(chance.randint(0, 2))]
        if chance.random() < 0.6:
            words.append(chance.choice(NUMBERS))
        return b":".join(words)

    def shard_name(self) -> bytes:
        """The name of something like a shard."""
        return b"%b:%b/%b:{%b}" % (
            self.chance.choice([b"s", self.text()]),
            *[self.chance.choice(NUMBERS) for _ in range(3)],
        )

    def envelope(self) -> list[bytes]:
        """The envelope of a dead letter, whole or nearly, with values that no query writes."""
        chance = self.chance
        told: list[bytes] = []
        for field, name in zip(FIELDS, NAMES, strict=True):
            plain = {"stream": b"s", "id": b"1-0", "group": b"g"}.get(name, b"")
            value = plain if chance.random() < 0.6 else chance.choice(_VALUES.get(name, TEXTS))
            if chance.random() < 0.97:
                told += [field, value]
        return told

    def fields(self) -> list[bytes]:
        """The fields of an entry, at least one."""
        chance = self.chance
        own = [
            word
            for _ in range(chance.randint(0, 3))
            for word in (chance.choice([b"n", b"n", self.text()]), self.text())
        ]
        roll = chance.random()
        if roll < 0.4:
            own += self.envelope()
        if 0.3 < roll < 0.6:
            own += [MARK, b"%b %b %b" % (chance.choice(NUMBERS), chance.choice(TIMES), chance.choice(TEXTS))]
        return own or [b"n", self.text()]

    def retry_names(self) -> bytes:
        """A stream of the query's own kind beside stream `s`: what waits for another try, and what has come back."""
        if self.chance.random() < 0.5:
            return key_beside("s", "returned", "g")
        return key_beside("s", "retry", "g", str(self.chance.randint(1, 2)))

    def strike(self, client: redis.Redis) -> str:
        """Write one thing; what it was. The client gives bytes, and may be refused what no server takes."""
        kind = self.chance.choices(list(_STRIKES), [weight for _, weight in _STRIKES.values()])[0]
        words = _STRIKES[kind][0](self)
        try:
            client.execute_command(*words)
        except redis.ResponseError:
            return kind + ", refused"
        return kind


def _group(stranger: Stranger) -> list[bytes]:
    return [b"XGROUP", b"CREATE", stranger.name(), stranger.text(), b"0", b"MKSTREAM"]


def _dead_letter(stranger: Stranger) -> list[bytes]:
    to = stranger.chance.choice([b"dead", b"letters"])  # queries read the first one, a redrive takes from the other
    return [b"XADD", to, b"*", *stranger.fields(), *stranger.envelope()]


def _consumer(stranger: Stranger) -> list[bytes]:
    group, name = stranger.text(), stranger.text()
    return [b"XGROUP", b"CREATECONSUMER", stranger.name(), group, name]


_STRIKES = {
    "entry of the query's stream": (lambda one: [b"XADD", b"s", b"*", *one.fields()], 6),
    "dead letter": (
        lambda one: [b"XADD", one.chance.choice([b"dead", b"letters"]), b"*", *one.fields(), *one.envelope()],
        6,
    ),
    "entry that waits or has come back": (lambda one: [b"XADD", one.retry_names(), b"*", *one.fields()], 4),
    "stream of any name": (lambda one: [b"XADD", one.name(), b"*", *one.fields()], 5),
    "something like a shard": (lambda one: [b"XADD", one.shard_name(), b"*", *one.fields()], 1),
    "group": (_group, 2),
    "consumer of the query's group": (lambda one: [b"XGROUP", b"CREATECONSUMER", b"s", b"g", b"x" + one.text()], 1),
    # NX: who may remove a stream that is read may stop its query.
    "key of another type": (lambda one: [b"SET", b"x" + one.name(), one.text(), b"NX"], 1),
    "delays": (
        lambda one: [
            b"SET",
            key_beside(one.chance.choice(["s", "t"]), "delays", "g"),
            b" ".join(one.chance.choices(NUMBERS, k=2)),
        ],
        1,
    ),
}
