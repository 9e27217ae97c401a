"""The common interface of one server and of a cluster.

One server is a `Connection`, and `connection_for` returns itself. A cluster (wire.topology.cluster) sends each command
to the node of its key's slot, and returns the connections to its nodes for raw requests. No server of a cluster handles
several slots together: WATCH and MULTI are for the keys of one slot, and a caller with several keys groups them with
`together`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, Self, TypeVar

from spark_streams.connector.errors import RStreamError, WrongKeyTypeError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Argument, Connection, Known, Reply, ReplyError
from spark_streams.connector.wire.connection.named_errors import Memory

T = TypeVar("T")
Key = str | bytes


class Server(Protocol):
    """One server, or all of a cluster. Not for use by two threads at once. Usable as a context manager."""

    @property
    def address(self) -> Address: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close all connections; calling it twice is harmless."""

    @property
    def is_open(self) -> bool:
        """Whether it was not closed here; the server may have closed it."""

    def renew_login(self) -> None:
        """Log in again if the credentials have changed. Raises ServerUnreachableError."""

    # -- commands: each is sent to the server of its key -------------------------------------------------------------

    def execute(self, *arguments: Argument) -> Reply:
        """Send one command and return its reply. Raises ServerReplyError (WrongKeyTypeError, …) for an error reply."""

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Return the replies of all commands in order; error replies stay values. For package wire."""

    def execute_all(self, commands: Sequence[Sequence[Argument]], *known: Known) -> list[Reply]:
        """Return the answers to all commands in order. Raises as `answer` does, the first error."""

    def execute_each(self, commands: Sequence[Sequence[Argument]], *known: Known) -> Iterator[Reply]:
        """As `execute_all`, but yield one reply at a time, for large replies."""

    def checked(self, commands: Iterable[Sequence[Argument]], replies: list[Reply], *known: Known) -> list[Reply]:
        """Return the replies to these commands, if they are answers. Raises as `answer` does, the first error."""

    def answer(self, command: Iterable[Argument], reply: Reply, *known: Known) -> Reply:
        """Return the reply to a command, if it is an answer. known: errors that are answers, too: they stay values.
        Raises the named error of any other error reply."""

    def error_of(self, reply: ReplyError, arguments: Iterable[Argument]) -> RStreamError:
        """Return the named error of an error reply to a command."""

    def memory(self) -> Memory:
        """Return the memory of the server; of a cluster: of its fullest node. Unknown if it does not answer."""

    def not_a_stream(self, key: Key, command: str) -> WrongKeyTypeError:
        """Return the error for a key of another type. command: the command that was, or would be, refused for it."""

    # -- location of keys ------------------------------------------------------------------------------------------

    def connection_for(self, key: Key) -> Connection:
        """Return the connection to the server that holds this key. Raises ServerUnreachableError, ServerReplyError."""

    def parts(self, items: Sequence[T], key: Callable[[T], Key]) -> list[tuple[Connection, list[T]]]:
        """Group the items by the servers that hold their keys, in order. Raises as `connection_for` does."""

    def together(self, items: Sequence[T], key: Callable[[T], Key]) -> list[list[T]]:
        """Group the items so that one transaction may touch each group."""

    def nodes(self) -> list[Connection]:
        """Return a connection to each server that accepts writes. Raises as `connection_for` does."""


# -- requests over one connection, several of them outstanding ---------------------------------------------------------

# Each group of requests ends in an end marker (an ECHO of a random token). `take` returns the reply bytes up to the
# oldest end marker.

_TOGETHER = 1 << 18  # bytes: pieces of less are sent as one


class Pipe:
    """Groups of requests over one connection, which is used for nothing else while replies are outstanding."""

    def __init__(self, server: Connection) -> None:
        self.server = server
        self.end_marker, self._token = server.mark
        self._inbox = bytearray()
        self._searched = 0

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send all pieces; replies that arrive meanwhile are stored. Raises ServerUnreachableError."""
        for piece in pieces if len(pieces) == 1 or sum(map(len, pieces)) > _TOGETHER else [b"".join(pieces)]:
            self.server.send(piece)

    def take(self) -> bytes:
        """Return the reply bytes up to the oldest end marker. Raises ServerUnreachableError."""
        while (end := self._inbox.find(self._token, self._searched)) < 0:
            self._searched = max(len(self._inbox) - len(self._token), 0)
            self._inbox += self.server.receive_some()
        replies = bytes(memoryview(self._inbox)[:end])
        del self._inbox[: end + len(self._token)]
        self._searched = 0
        return replies
