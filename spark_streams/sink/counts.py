"""How much of a load is in its stream (loading.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_streams.errors import LedgerError
from spark_streams.keys import key_beside
from spark_streams.numbers import whole
from spark_streams.sink.chunks import Chunk
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class Count:
    """How many rows of an input are in the stream. total: the sum of their fingerprints, mod 2^64."""

    rows: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: bytes | None) -> Count:
        """From the hash's value. Raises LedgerError."""
        if text is None:
            return cls()
        words = [whole(word) for word in text.split()]
        if len(words) != 2 or words[0] is None or words[1] is None:
            raise LedgerError(
                f"the count of a load cannot be read ({text[:50]!r}): it was changed by something else; under another "
                "name all of the input is loaded, and what is there a second time"
            )
        return cls(words[0], words[1])

    def and_(self, chunk: Chunk) -> Count:
        """With this chunk's rows."""
        assert chunk.hashes is not None
        with np.errstate(over="ignore"):
            return Count(self.rows + len(chunk), (self.total + int(chunk.hashes.sum(dtype=np.uint64))) % 2**64)

    def __str__(self) -> str:
        return f"{self.rows} {self.total}"


@dataclass(frozen=True)
class Load:
    """name: of the load; input: which of its inputs this is; rate: rows a second, None: as fast as it goes."""

    name: str
    input: str
    rate: int | None = None


def load_key(stream: str, name: str) -> bytes:
    """Where a load keeps its counts."""
    return key_beside(stream, "load", name)


def counts_of(server: Server, stream: str, name: str) -> dict[str, Count]:
    """By input what is loaded; nothing where the stream has been deleted since: then it is loaded anew."""
    if not server.execute("EXISTS", stream):
        return {}
    flat = server.execute("HGETALL", load_key(stream, name))
    return {key.decode(): Count.parse(value) for key, value in zip(flat[0::2], flat[1::2], strict=True)}


def forget_counts(server: Server, stream: str, name: str) -> None:
    """The next load of this name begins at the first row."""
    server.execute("DEL", load_key(stream, name))
