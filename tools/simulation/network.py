"""The network between product and server, and the time that it takes: what it loses, delays and refuses.

A server of kind `process` has the plan's clock. Other kinds run in their own time: there a reply that is later than the
product waits is lost, and any other one comes at once.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from spark_streams.connector.wire.address import DEFAULT_PATIENCE
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.sockets import socket_of
from tools.servers.server import Server
from tools.simulation.in_process.server import ProcessServer

SILENCE = DEFAULT_PATIENCE.reply  # seconds after which the product gives up a connection


@dataclass
class Network:
    """State of the network of one world.

    clock: lets time pass, if the server has the plan's; refused: attempts to connect that will fail; parted: `requests`
    or `replies`, which are lost until then; late: seconds that the next reply takes.
    """

    server: Server
    clock: Callable[[float], None]
    refused: int = 0
    parted: str = ""
    late: float = 0.0

    def refuses(self) -> bool:
        """Whether an attempt to connect fails now."""
        if not self.refused:
            return False
        self.refused -= 1
        if not self.refused:
            self.parted = ""
        return True

    def loses_request(self, connection: Connection) -> bool:
        """Whether what this connection sends now does not arrive."""
        if self.parted != "requests":
            return False
        self.pass_time(SILENCE)
        break_connection(connection)
        return True

    def reply(self, connection: Connection) -> None:
        """Deliver the reply to what was sent: in time, late, or not at all."""
        seconds, self.late = SILENCE if self.parted == "replies" else self.late, 0.0
        self.pass_time(min(seconds, SILENCE))
        if seconds >= SILENCE:
            break_connection(connection)

    @property
    def is_disturbed(self) -> bool:
        """Whether it refuses, loses or delays something now."""
        return bool(self.refused or self.parted or self.late)

    def recover(self) -> None:
        """End all faults."""
        self.refused, self.parted, self.late = 0, "", 0.0
        if isinstance(self.server, ProcessServer):
            self.server.core.refusals.end()

    def pass_time(self, seconds: float) -> None:
        """Move the plan's clock, if there is one."""
        if isinstance(self.server, ProcessServer):
            self.clock(seconds)


def break_connection(connection: Connection) -> None:
    """Break a connection: what it has sent is executed, the reply is lost."""
    open_socket = socket_of(connection._connection)
    if open_socket is not None:
        with contextlib.suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)
