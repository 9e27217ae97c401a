"""Redis' patterns of keys and streams: `* ? [a-c] [^a] \\x`. Pure."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=128)
def compiled(pattern: bytes) -> re.Pattern[bytes]:
    """The pattern as a regular expression for `fullmatch`."""
    segments = [out := bytearray()]  # what stands between the stars
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"*":
            segments.append(out := bytearray())
        elif byte == b"?":
            out += b"."
        elif byte == b"\\" and at + 1 < len(pattern):
            at += 1
            out += re.escape(pattern[at : at + 1])
        elif byte == b"[" and (end := pattern.find(b"]", at + 1)) > 0:
            inner = pattern[at + 1 : end]
            negated = inner[:1] == b"^"
            body = inner[1:] if negated else inner
            safe = re.sub(rb"([\[\]\\^&|~])", rb"\\\1", body)
            out += (b"[^" if negated else b"[") + safe + b"]" if body else b"(?!)"
            at = end
        else:
            out += re.escape(byte)
        at += 1
    # The first place where a segment fits is as good as any later one: never looked for twice (`(?>`), so that a
    # pattern of many stars costs no more than a long one.
    whole = bytes(segments[0])
    if len(segments) > 1:
        whole += b"".join(b"(?>.*?%b)" % bytes(part) for part in segments[1:-1] if part) + b".*" + bytes(segments[-1])
    try:
        return re.compile(whole, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def is_pattern(name: str) -> bool:
    """Whether it has anything that a pattern is made of."""
    return re.search(r"[*?\[]", name) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether Redis would find this name by this pattern."""
    return compiled(pattern.encode()).fullmatch(name.encode()) is not None
