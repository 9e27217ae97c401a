"""Redis' patterns of keys and streams: `* ? [a-c] [^a] \\x`. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import NamedTuple


@lru_cache(maxsize=128)
def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Return the pattern as a regular expression for `fullmatch`."""
    segments = [out := bytearray()]  # the parts between the stars
    index = 0
    while index < len(pattern):
        byte = pattern[index : index + 1]
        if byte == b"*":
            segments.append(out := bytearray())
        elif byte == b"?":
            out += b"."
        elif byte == b"\\" and index + 1 < len(pattern):
            index += 1
            out += re.escape(pattern[index : index + 1])
        elif byte == b"[":
            expression, index = _class(pattern, index + 1)
            out += expression
        else:
            out += re.escape(byte)
        index += 1
    # If a segment matches at several places, the first is enough. Atomic groups (`(?>`) prevent backtracking, so many
    # stars cost no more than a long pattern.
    expression = bytes(segments[0])
    if len(segments) > 1:
        expression += (
            b"".join(b"(?>.*?%b)" % bytes(part) for part in segments[1:-1] if part) + b".*" + bytes(segments[-1])
        )
    return re.compile(expression, re.DOTALL)


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
            low, high = sorted((pattern[index], pattern[index + 2]))
            members += b"\\x%02x-\\x%02x" % (low, high)
            index += 2
        else:
            members += b"\\x%02x" % pattern[index]
        index += 1
    if not members:
        return (b"." if negated else b"(?!)"), index
    return b"[%b%b]" % (b"^" if negated else b"", bytes(members)), index


def escape(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name)


def is_pattern(name: str) -> bool:
    """Whether a name has special characters of a pattern."""
    return re.search(r"[*?\[]", name) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, as in Redis. Bytes that are not UTF-8 are surrogate escapes."""
    return compile_pattern(_bytes(pattern)).fullmatch(_bytes(name)) is not None


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
