"""The lease of the process that works on the dead letters of a stream: `rstream:lease:{stream}:redrive`."""

from __future__ import annotations

from spark_streams.connector.errors import RedriveTakenError
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire.lease import Lease


class RedriveLease(Lease):
    """The lease of the process that moves or purges dead letters of a stream. Raises RedriveTakenError."""

    def key_of(self, stream: str) -> bytes:
        return key_beside(stream, "lease", "redrive")

    def taken(self, stream: str, where: str) -> RedriveTakenError:
        return RedriveTakenError(
            f"another process moves or purges dead letters of stream {stream!r} at {self._address}{where}; "
            "let it end, or stop it"
        )
