"""One value for each stream: what options give as JSON by stream or pattern. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_streams.model.pattern import is_pattern, matches

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

    def of_parts(
        self, parts: Mapping[str, Sequence[str]], share: Callable[[T, int], T] = lambda value, _count: value
    ) -> PerStream[T]:
        """What is said of a stream is said of each of its parts that is not named itself. parts: their names, by
        stream; share: what each of so many parts has of the stream's value."""
        named: dict[str, T] = {}
        for stream, names in parts.items():
            if self.unmeant((stream,)) != list(self.named):
                named |= dict.fromkeys(names, share(self.of(stream), len(names)))
        return PerStream(self.otherwise, named | dict(self.named))

    def unmeant(self, streams: tuple[str, ...]) -> list[str]:
        """The names that mean none of these streams."""
        return [
            name
            for name in self.named
            if name not in streams and not (is_pattern(name) and any(matches(name, stream) for stream in streams))
        ]
