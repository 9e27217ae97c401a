"""A server whose memory is full, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tools.servers.server import Server


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    """The server refuses all that needs memory (OOM) until the end of the block. What is there stays."""
    with server.client() as client:
        client.set("filler", b"x" * 1_000_000)  # the engine counts only data
        client.config_set("maxmemory", 500_000)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)
            client.delete("filler")
