"""Text of a request in a story: the commands of some bytes, shortened."""

from __future__ import annotations

from collections.abc import Iterator

import hiredis


def says(data: bytes | memoryview | None, text: str) -> bool:
    """Whether a command of these bytes contains a text; always if it is empty. None: no request."""
    return not text or (data is not None and any(text in " ".join(words) for words in _commands(data)))


def describe(data: bytes | memoryview, limit: int = 4) -> str:
    """Return the commands as `XINFO STREAM s:0 | XINFO GROUPS s:0 | …`."""
    shown = [
        " ".join(word[:30] for word in words[:12]) + (" …" if len(words) > 12 else "") for words in _commands(data)
    ]
    more = f" | … ({len(shown)})" if len(shown) > limit else ""
    return " | ".join(shown[:limit]) + more


def _commands(data: bytes | memoryview) -> Iterator[list[str]]:
    reader = hiredis.Reader()
    reader.feed(bytes(data))
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words and words[0] != b"ECHO":
            yield [word.decode("utf-8", "replace") for word in words]
