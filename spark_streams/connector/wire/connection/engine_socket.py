"""The socket of a bundled engine, as it was when a connection to the engine was made.

A logout and a cleaning of /tmp remove the folder of the socket. The engine then ends (engine.server.event_loop), and
its streams with it, if no directory keeps them. The next process starts another, empty one under the same name. So a
connection that is lost tells whether the socket is still the same, and the query does not go on in another engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.wire.address.address import Address


class EngineSocket(NamedTuple):
    """path: of the socket; file: its device and inode."""

    path: Path
    file: tuple[int, int] | None

    @classmethod
    def of(cls, address: Address, url: str) -> Self | None:
        """Return the socket of a connection; None if the server is no bundled engine. url: what it is connected to."""
        if not address.is_embedded:
            return None
        path = Path(unquote(urlsplit(url).path))
        return cls(path, _file(path))

    def removed(self, address: Address) -> ServerUnreachableError | None:
        """Return the final error if the engine's streams are gone with its folder; None if it may be connected to
        again."""
        directory = address.directory
        if directory is None and _file(self.path) != self.file:
            what, remedy = f"socket {self.path}", "Use url embedded:///directory, which keeps streams"
        elif directory is not None and not directory.exists():
            what, remedy = f"directory {directory}", "Restore the directory, or name another one"
        else:
            return None
        return ServerUnreachableError(
            f"lost the bundled engine at {address}: its {what} is gone. The engine was stopped, or a logout or a "
            f"cleaning of temporary files has removed the folder. Its streams are gone with it. {remedy}",
            passes=False,
        )


def _file(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
