"""Redis' patterns of keys and streams: `* ? [a-c] [^a] \\x`. Pure."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from typing import NamedTuple

_MANY_STEPS = 1 << 18  # bytes of a name times bytes of a pattern: a regular expression may need as many steps
_ALL_BYTES = bytes(range(256))


@lru_cache(maxsize=128)
def compile_pattern(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether a name matches, as Redis' `stringmatchlen` does. It takes a time that is
    proportional to the bytes of the name, whatever the pattern is."""
    if pattern == b"*":
        return _matches_any
    segments = _segments(pattern)
    expression = _expression(segments)
    if len(segments) == 1 or (len(segments) == 2 and segments[0] and not segments[1]):
        return lambda name: expression.fullmatch(name) is not None  # a name, or a name's begin: one step for each byte
    automaton: list[_Automaton] = []

    def fits(name: bytes) -> bool:
        if not name:
            return False  # of all patterns with a star, only `*` itself matches the empty name
        if len(name) * len(pattern) <= _MANY_STEPS:
            return expression.fullmatch(name) is not None
        if not automaton:
            automaton.append(_Automaton(segments))
        return automaton[0].matches(name)

    return fits


def _matches_any(name: bytes) -> bool:
    return True


def _segments(pattern: bytes) -> list[list[bytes]]:
    """Return the parts between the stars. Each element is a regular expression that matches one byte."""
    segments: list[list[bytes]] = [[]]
    index = 0
    while index < len(pattern):
        byte = pattern[index : index + 1]
        if byte == b"*":
            segments.append([])
        elif byte == b"?":
            segments[-1].append(b".")
        elif byte == b"\\" and index + 1 < len(pattern):
            index += 1
            segments[-1].append(re.escape(pattern[index : index + 1]))
        elif byte == b"[":
            expression, index = _class(pattern, index + 1)
            segments[-1].append(expression)
        else:
            segments[-1].append(re.escape(byte))
        index += 1
    return segments


def _expression(segments: list[list[bytes]]) -> re.Pattern[bytes]:
    # If a segment matches at several places, the first is enough. Atomic groups (`(?>`) prevent backtracking, so many
    # stars cost no more than a long pattern.
    first, *others = (b"".join(segment) for segment in segments)
    if others:
        first += b"".join(b"(?>.*?%b)" % segment for segment in others[:-1] if segment) + b".*" + others[-1]
    return re.compile(first, re.DOTALL)


class _Automaton:
    """All places in the pattern at which a match may stand, as bits of one number: one step for each byte of a name.

    bit n: the elements before the n-th have matched. A star keeps its bit.
    """

    def __init__(self, segments: list[list[bytes]]) -> None:
        elements = [element for segment in segments for element in segment]
        ends = list(itertools.accumulate(map(len, segments)))
        self._stars = sum(1 << end for end in set(ends[:-1]))
        self._last = 1 << len(elements)
        places: dict[bytes, int] = defaultdict(int)
        for place, element in enumerate(elements):
            places[element] |= 1 << place
        self._accepts = [0] * 256  # by byte: the elements that match it
        for element, bits in places.items():
            for byte in re.findall(element, _ALL_BYTES, re.DOTALL):
                self._accepts[byte[0]] |= bits

    def matches(self, name: bytes) -> bool:
        accepts, stars, state = self._accepts, self._stars, 1
        for byte in name:
            state = ((state & accepts[byte]) << 1) | (state & stars)
            if not state:
                return False
        return bool(state & self._last)


def _class(pattern: bytes, index: int) -> tuple[bytes, int]:
    """Return the characters in brackets as a regular expression, and the index of the closing bracket. Without one the
    class has all remaining characters."""
    negated = pattern[index : index + 1] == b"^"
    index += negated
    members = bytearray()
    while index < len(pattern) and pattern[index] != ord("]"):
        if pattern[index] == ord("\\") and index + 1 < len(pattern):
            index += 1
            members += b"\\x%02x" % pattern[index]
        elif index + 2 < len(pattern) and pattern[index + 1] == ord("-"):
            members += _range(pattern[index], pattern[index + 2])
            index += 2
        else:
            members += b"\\x%02x" % pattern[index]
        index += 1
    if not members:
        return (b"." if negated else b"(?!)"), index
    return b"[%b%b]" % (b"^" if negated else b"", bytes(members)), index


def _range(first: int, last: int) -> bytes:
    """Return a range of bytes, in any order. Redis compares signed bytes: \\x80 to \\xff are below \\x00."""
    low, high = sorted(byte - 256 if byte > 127 else byte for byte in (first, last))
    if low < 0 <= high:
        return b"\\x%02x-\\xff\\x00-\\x%02x" % (low + 256, high)
    return b"\\x%02x-\\x%02x" % (low % 256, high % 256)


def escape(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name)


def is_pattern(name: str) -> bool:
    """Whether a name has special characters of a pattern."""
    return re.search(r"[*?\[]", name) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, as in Redis. Bytes that are not UTF-8 are surrogate escapes."""
    return compile_pattern(_bytes(pattern))(_bytes(name))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class NamesAndPatterns(NamedTuple):
    """Words that a user gave for streams or groups: names, and patterns. A word with special characters is a name if
    something has this name, and a pattern only otherwise."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    @classmethod
    def divide(cls, words: Iterable[str], existing: Container[str]) -> NamesAndPatterns:
        """Divide words. existing: has all names that exist."""
        words = list(dict.fromkeys(words))
        patterns = tuple(word for word in words if is_pattern(word) and word not in existing)
        return cls(frozenset(words) - set(patterns), patterns)

    def selects(self, name: str) -> bool:
        """Whether the words mean this name."""
        return name in self.names or any(name == pattern or matches(pattern, name) for pattern in self.patterns)
