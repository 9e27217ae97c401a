"""One value for each stream, from options that are JSON by stream or pattern. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from spark_streams.base.pattern import is_pattern, matches

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class PerStream(Generic[T]):
    """Values per stream. named: by stream name or Redis pattern; otherwise: for streams that match none of them;
    streams: those that the user names, none with a pattern. A name in `named` that is one of them is never a pattern.
    """

    otherwise: T
    named: Mapping[str, T]
    streams: frozenset[str] = frozenset()

    def value_for(self, stream: str) -> T:
        """Return the value for the stream's name, else for the first matching pattern, else `otherwise`."""
        if stream in self.named:
            return self.named[stream]
        for name, value in self.named.items():
            if self._matches(name, stream):
                return value
        return self.otherwise

    def for_streams(self, streams: Iterable[str]) -> PerStream[T]:
        """Return the same values for streams that the user names."""
        return replace(self, streams=frozenset(streams))

    def _matches(self, name: str, stream: str) -> bool:
        return name not in self.streams and is_pattern(name) and matches(name, stream)

    def covers(self, stream: str) -> bool:
        """Return whether the option sets a value for this stream: by name, by pattern, or one value for all streams."""
        return not self.named or len(self.unmatched((stream,))) < len(self.named)

    def map(self, change: Callable[[T], U], otherwise: U) -> PerStream[U]:
        """Return the same names with converted values."""
        return PerStream(otherwise, {name: change(value) for name, value in self.named.items()}, self.streams)

    def for_shards(
        self, shards: Mapping[str, Sequence[str]], share: Callable[[T, int], T] = lambda value, _count: value
    ) -> PerStream[T]:
        """Return the values for shards. A shard that is not named itself gets the value of its stream.

        shards: their names by stream; share: returns a shard's value from the stream's value and the number of shards.
        """
        named: dict[str, T] = {}
        for stream, names in shards.items():
            if self.unmatched((stream,)) != list(self.named):
                named |= dict.fromkeys(names, share(self.value_for(stream), len(names)))
        return PerStream(self.otherwise, named | dict(self.named), self.streams)

    def unmatched(self, streams: tuple[str, ...]) -> list[str]:
        """Return the names that match none of these streams."""
        return [
            name
            for name in self.named
            if name not in streams and not any(self._matches(name, stream) for stream in streams)
        ]
