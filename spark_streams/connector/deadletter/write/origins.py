"""Origins of dead letters: the streams and groups from which a dead-letter stream has dead letters.

What writes dead letters records them beside the dead-letter stream, in a hash that no producer may write. A redrive
sends dead letters back only to these streams (redrive/destinations.py), and a query with a pattern does not read a
stream that has such a hash (inspect/input_streams.py).
"""

from __future__ import annotations

from spark_streams.connector.deadletter.write.failed_entry import Command
from spark_streams.connector.keys import origin_field, origins_key


def origin_command(to: str, stream: str, group: str) -> Command:
    """Return the command that records one origin of the dead-letter stream `to`."""
    return "HSET", origins_key(to), origin_field(stream, group), b""
