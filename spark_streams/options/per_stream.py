"""One value for each stream: what options give as JSON by stream or pattern. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_streams.redis_pattern import is_pattern, matches

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class PerStream(Generic[T]):
    """named: values by the stream's name or by a Redis pattern; otherwise: for streams that none of them means."""

    otherwise: T
    named: Mapping[str, T]

    def of(self, stream: str) -> T:
        """The value of its name, else of the first pattern that matches it, else `otherwise`."""
        if stream in self.named:
            return self.named[stream]
        for name, value in self.named.items():
            if is_pattern(name) and matches(name, stream):
                return value
        return self.otherwise

    def means(self, stream: str) -> bool:
        """Whether a value was given for this stream: by name, by pattern, or the same for all."""
        return not self.named or len(self.unmeant((stream,))) < len(self.named)

    def map(self, change: Callable[[T], U], otherwise: U) -> PerStream[U]:
        """The same names with other values."""
        return PerStream(otherwise, {name: change(value) for name, value in self.named.items()})

    def unmeant(self, streams: tuple[str, ...]) -> list[str]:
        """The names that mean none of these streams."""
        return [
            name
            for name in self.named
            if name not in streams and not (is_pattern(name) and any(matches(name, stream) for stream in streams))
        ]
