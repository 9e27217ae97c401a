"""Text of a request in a story: the commands of some bytes, shortened."""

from __future__ import annotations

import hiredis


def describe(data: bytes | memoryview, limit: int = 4) -> str:
    """Return the commands as `XINFO STREAM s:0 | XINFO GROUPS s:0 | …`."""
    reader = hiredis.Reader()
    reader.feed(bytes(data))
    shown = []
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words and words[0] != b"ECHO":
            line = " ".join(word.decode("utf-8", "replace")[:30] for word in words[:12])
            shown.append(line + (" …" if len(words) > 12 else ""))
    more = f" | … ({len(shown)})" if len(shown) > limit else ""
    return " | ".join(shown[:limit]) + more
