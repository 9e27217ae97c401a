"""Streams that are trimmed to the entry, although the product trims whole nodes (`~`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tools.servers.server import Server

_NODE_BYTES = "stream-node-max-bytes"


@contextlib.contextmanager
def nodes_of_one_entry(server: Server) -> Iterator[None]:
    """Entries that are appended meanwhile have a node each. (With few entries per node as the limit, the server would
    remove fewer entries at a time.)"""
    with server.client(decode_responses=True) as client:
        before = client.config_get(_NODE_BYTES)[_NODE_BYTES]
        client.config_set(_NODE_BYTES, 1)
    try:
        yield
    finally:
        with server.client(decode_responses=True) as client:
            client.config_set(_NODE_BYTES, before)
