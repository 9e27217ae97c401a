"""Redis' patterns of keys and streams: `* ? [a-c] [^a] \\x`. Pure."""

from __future__ import annotations

import re
from functools import lru_cache


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
        elif byte == b"[" and (end := pattern.find(b"]", index + 1)) > 0:
            inner = pattern[index + 1 : end]
            negated = inner[:1] == b"^"
            body = inner[1:] if negated else inner
            safe = re.sub(rb"([\[\]\\^&|~])", rb"\\\1", body)
            out += (b"[^" if negated else b"[") + safe + b"]" if body else b"(?!)"
            index = end
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
    try:
        return re.compile(expression, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def is_pattern(name: str) -> bool:
    """Whether a name has special characters of a pattern."""
    return re.search(r"[*?\[]", name) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, as in Redis."""
    return compile_pattern(pattern.encode()).fullmatch(name.encode()) is not None
