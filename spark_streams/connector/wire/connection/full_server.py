"""A server that has used all memory of `maxmemory`: it answers OOM to each command that may need more. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_streams.base.sizes import size
from spark_streams.connector.errors import ServerFullError

FULL = "OOM"  # the code of its replies
ASK = ("INFO", "memory")
_FIELD = re.compile(rb"^(used_memory|maxmemory):(\d{1,19})\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Bytes in use, and the limit (maxmemory). Both are 0 if the server did not tell them."""

    used: int = 0
    limit: int = 0

    @classmethod
    def read(cls, reply: object) -> Memory:
        """Return the memory from a reply to ASK; an error reply tells nothing."""
        numbers = {name: int(digits) for name, digits in _FIELD.findall(reply)} if isinstance(reply, bytes) else {}
        return cls(numbers.get(b"used_memory", 0), numbers.get(b"maxmemory", 0))

    @property
    def share(self) -> float:
        """Part of the limit that is in use; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0


def server_full(where: str, memory: Memory) -> ServerFullError:
    """Return the error for a refused command. where: the command and the server."""
    numbers = f" ({size(memory.used)} used of maxmemory {size(memory.limit)})" if memory.limit else ""
    return ServerFullError(
        f"{where}: the server's memory is full{numbers}. Free memory or raise maxmemory: rstream trim --acked lists "
        "entries that no group needs any more, and rstream doctor checks the server",
        FULL,
    )
