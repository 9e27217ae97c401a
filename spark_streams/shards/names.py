"""What the shards of a stream are called. Pure; docs/reference/shards.md has the rule for other languages.

Shard i of N of stream `orders` is `orders:<i>/<N>:{<t>}`, with i from 0 on. t is the smallest number whose slot in a
Redis Cluster is the one in the middle of the i-th of N equal parts of all slots, (2 i + 1) · 8192 // N: so shards are
spread evenly over the nodes of a cluster, and on one server the name does no harm. N stands in the name, so shards of
another number are other streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spark_streams.model.keys import SLOTS, tag_of_slot
from spark_streams.model.numbers import parse_number

MOST = 256  # shards of a stream
_NAME = re.compile(r"([^{}]+):([0-9]{1,3})/([0-9]{1,3}):\{[0-9]+\}", re.DOTALL)


@dataclass(frozen=True)
class Shard:
    """One of them. stream: the logical name; number: from 0 on; count: how many there are."""

    stream: str
    number: int
    count: int

    @property
    def name(self) -> str:
        """The stream's name on the server."""
        tag = tag_of_slot((2 * self.number + 1) * (SLOTS // 2) // self.count).decode()
        return f"{self.stream}:{self.number}/{self.count}:{{{tag}}}"

    @classmethod
    def named(cls, name: str) -> Shard | None:
        """The shard that a stream of this name is; None: it is none."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        number, count = parse_number(found[2], MOST), parse_number(found[3], MOST)
        if number is None or count is None or number >= count:
            return None
        shard = cls(found[1], number, count)
        is_one = shard.name == name
        return shard if is_one else None


@lru_cache(maxsize=64)
def shards_of(stream: str, count: int) -> tuple[str, ...]:
    """The names of all shards, in their order."""
    return tuple(Shard(stream, number, count).name for number in range(count))


def every_name(stream: str) -> Iterator[list[str]]:
    """The names that shards of a stream can have: of 1 shard, of 2, and so on up to MOST."""
    for endings in _endings():
        yield [stream + ending for ending in endings]


@lru_cache(maxsize=1)
def _endings() -> tuple[tuple[str, ...], ...]:
    """What follows the stream's name in its shards' names, by their number. 0.1 s the first time."""
    return tuple(shards_of("", count) for count in range(1, MOST + 1))


def may_be_in_shards(stream: str) -> bool:
    """Whether a stream of this name can be in shards: braces would say which slot all of them stand in."""
    return bool(stream) and not {"{", "}"} & set(stream)
