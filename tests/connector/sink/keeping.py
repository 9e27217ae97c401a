"""What a server holds at some moment, to be brought back later: as after a failover to a replica that lagged."""

from __future__ import annotations

from tools.key_copies import copies, make_again
from tools.servers.server import Server


class Copy:
    """All keys of a server as they are now. only: those whose name holds this."""

    def __init__(self, server: Server, only: bytes = b"") -> None:
        self._server, self._only = server, only
        with server.client() as client:
            self._keys = copies(client, [key for key in client.keys("*") if only in key])

    def bring_back(self) -> None:
        with self._server.client() as client:
            for key in client.keys("*"):
                if self._only in key:
                    client.delete(key)
            make_again(client, self._keys)
