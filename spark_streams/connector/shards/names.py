"""Names of a stream's shards. Pure; docs/reference/keys.md has the rule for other languages.

Shard i of N of stream `orders` is `orders:<i>/<N>:{<t>}`, with i from 0 on. All slots of a Redis Cluster are divided
into N equal parts. t is the smallest number whose slot is in the middle of the i-th part, (2 i + 1) · 8192 // N. So
shards are spread evenly over the nodes of a cluster. N is part of the name, so shards of another number are other
streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spark_streams.base.numbers import parse_number
from spark_streams.connector.keys import SLOTS, tag_of_slot

MAX_SHARDS = 256  # shards of a stream
MAX_NAME = 1_024  # bytes of a stream's name that can be in shards: all names of its shards then take 34 MB
_NAME = re.compile(r"([^{}]+):([0-9]{1,3})/([0-9]{1,3}):\{[0-9]+\}", re.DOTALL)


@dataclass(frozen=True)
class Shard:
    """One shard. stream: the logical name; number: from 0 on; count: number of the stream's shards."""

    stream: str
    number: int
    count: int

    @property
    def name(self) -> str:
        """The stream's name on the server."""
        tag = tag_of_slot((2 * self.number + 1) * (SLOTS // 2) // self.count).decode()
        return f"{self.stream}:{self.number}/{self.count}:{{{tag}}}"

    @classmethod
    def parse(cls, name: str) -> Shard | None:
        """Return the shard with this name; None if it is not a shard's name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        number, count = parse_number(match[2], MAX_SHARDS), parse_number(match[3], MAX_SHARDS)
        if number is None or count is None or number >= count:
            return None
        shard = cls(match[1], number, count)
        return shard if shard.name == name else None


@lru_cache(maxsize=64)
def shards_of(stream: str, count: int) -> tuple[str, ...]:
    return tuple(Shard(stream, number, count).name for number in range(count))


def possible_names(stream: str) -> Iterator[list[str]]:
    """Yield the names that shards of a stream can have: of 1 shard, of 2, and so on up to MAX_SHARDS."""
    for endings in _endings():
        yield [stream + ending for ending in endings]


@lru_cache(maxsize=1)
def _endings() -> tuple[tuple[str, ...], ...]:
    """Return the parts of shards' names that follow the stream's name, by their number. 0.1 s the first time."""
    return tuple(shards_of("", count) for count in range(1, MAX_SHARDS + 1))


def may_be_in_shards(stream: str) -> bool:
    """Whether a stream of this name can be in shards: braces would put all shards into one slot."""
    is_short = len(stream) <= MAX_NAME and len(stream.encode("utf-8", "replace")) <= MAX_NAME
    return bool(stream) and is_short and not {"{", "}"} & set(stream)
