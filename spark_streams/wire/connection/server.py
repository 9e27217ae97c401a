"""What one server and a cluster of them have in common: whoever uses one, uses the other.

One server is a `Connection`: `of` is itself, and everything is as near as can be. A cluster (wire.topology.cluster)
sends each command to the node that has its key's slot, and hands out the connections to its nodes for what goes out as
raw bytes. What spans slots no server of a cluster does: WATCH and MULTI are for the keys of one slot, and whoever works
on several asks `together`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, Self, TypeVar

from spark_streams.errors import RStreamError, WrongKeyTypeError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Argument, Connection, Reply, ReplyError

T = TypeVar("T")
Key = str | bytes


class Server(Protocol):
    """One server, or all of a cluster. Not for use by two threads at once. Closes as a context manager."""

    @property
    def address(self) -> Address: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close what is connected; calling it twice is harmless."""

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it, which says nothing of the other side."""

    def renew_login(self) -> None:
        """Log in again where there are other credentials by now. Raises ServerUnreachableError."""

    # -- commands: each goes where its key is ---------------------------------------------------------------------

    def execute(self, *arguments: Argument) -> Reply:
        """One command, one reply. Raises ServerReplyError (or its WRONGTYPE, NOGROUP kin) for an error reply."""

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies of all commands in order; error replies stay values."""

    def each(self, commands: Sequence[Sequence[Argument]]) -> Iterator[Reply]:
        """The same, a reply at a time, for large ones."""

    def execute_all(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The same where none may fail. Raises the named error of the first reply that is one."""

    def checked(self, commands: Iterable[Sequence[Argument]], replies: list[Reply]) -> list[Reply]:
        """The replies to these commands. Raises the named error of the first one that is an error."""

    def error_of(self, reply: ReplyError, arguments: Iterable[Argument]) -> RStreamError:
        """The named error for an error reply to a command."""

    def not_a_stream(self, key: Key, command: str) -> WrongKeyTypeError:
        """The error for a key that holds something else; command: that was, or would be, refused for it."""

    # -- where keys are --------------------------------------------------------------------------------------------

    def of(self, key: Key) -> Connection:
        """The connection to the server that has this key. Raises ServerUnreachableError, ServerReplyError."""

    def parts(self, items: Sequence[T], key: Callable[[T], Key]) -> list[tuple[Connection, list[T]]]:
        """The items by the servers that have their keys, each in their order. Raises as `of` does."""

    def together(self, items: Sequence[T], key: Callable[[T], Key]) -> list[list[T]]:
        """The items by what one transaction may touch."""

    def nodes(self) -> list[Connection]:
        """A connection to each server that takes writes. Raises as `of` does."""
