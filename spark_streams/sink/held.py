"""Chunks that may not be written yet: they wait in their order, and go to a file where they are many."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from spark_streams.sink.chunks import Chunk
from spark_streams.wire.entries.encode import Requests

IN_MEMORY = 64 << 20  # bytes of commands


class Held(contextlib.AbstractContextManager["Held"]):
    """A queue of chunks. Closes as a context manager."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._bytes: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - it is closed below

    def __exit__(self, *_: object) -> None:
        self._bytes.close()

    @property
    def waiting(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._bytes.write(chunk.requests.slice(0, len(chunk)))
        offsets = chunk.requests.offsets - chunk.requests.offsets[0]
        self._chunks.append(replace(chunk, requests=Requests(memoryview(b""), offsets)))

    def release(self) -> Iterator[Chunk]:
        """Hand all of them out."""
        held, self._chunks = self._chunks, []
        if held:
            self._bytes.seek(0)
        for chunk in held:
            data = memoryview(self._bytes.read(int(chunk.requests.offsets[-1])))
            yield replace(chunk, requests=Requests(data, chunk.requests.offsets))
        if held:
            self._bytes.seek(0)
            self._bytes.truncate()
