"""Queue of chunks that may not be written yet: in memory, beyond 64 MB in a file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from spark_streams.sink.encode.chunks import Chunk
from spark_streams.wire.entries.encode import Requests

IN_MEMORY = 64 << 20  # bytes of commands


class SpillQueue(contextlib.AbstractContextManager["SpillQueue"]):
    """A queue of chunks. Closes as a context manager."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []  # without their commands
        self._commands: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed below

    def __exit__(self, *_: object) -> None:
        self._commands.close()

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._commands.write(chunk.requests.slice(0, len(chunk)))
        offsets = chunk.requests.offsets - chunk.requests.offsets[0]
        self._chunks.append(replace(chunk, requests=Requests(memoryview(b""), offsets)))

    def release(self) -> Iterator[Chunk]:
        """Yield all chunks in their order, and empty the queue."""
        if not self._chunks:
            return
        chunks, self._chunks = self._chunks, []
        self._commands.seek(0)
        for chunk in chunks:
            commands = memoryview(self._commands.read(int(chunk.requests.offsets[-1])))
            yield replace(chunk, requests=Requests(commands, chunk.requests.offsets))
        self._commands.seek(0)
        self._commands.truncate()
