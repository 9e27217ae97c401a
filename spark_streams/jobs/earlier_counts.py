"""What versions before the sink's ledger kept of a load: how many rows of each file are in the stream.

    rstream:load:{orders}:<name>    a hash: file → `<rows> <sum of fingerprints>`

No checkpoint knows these rows, so a load that meets them is refused.
"""

from __future__ import annotations

from collections.abc import Container

from spark_streams.errors import LedgerError
from spark_streams.jobs.file_log import plain
from spark_streams.model.keys import key_beside
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import matching_hashes


def require_uncounted(server: Server, stream: str, files: Container[str]) -> None:
    """Raises LedgerError if rows of these files were loaded into the stream by such a version. A stream that is gone
    has no rows of them."""
    if not server.execute("EXISTS", stream):
        return
    prefix = key_beside(stream, "load") + b":"
    for key in matching_hashes(server, "rstream:load:*"):
        if not key.startswith(prefix) or b":" in key.removeprefix(prefix):
            continue  # of another stream, whose key has its name behind the hash tag
        flat = server.execute("HGETALL", key)
        counts = {plain(name.decode()): value for name, value in zip(flat[0::2], flat[1::2], strict=True)}
        known = sorted(file for file in counts if file in files)
        if known:
            raise _refused(stream, key.decode(), known, counts[known[0]])


def _refused(stream: str, key: str, files: list[str], count: bytes) -> LedgerError:
    others = f", and rows of {len(files) - 1:,} other files" if len(files) > 1 else ""
    return LedgerError(
        f"an earlier version has loaded {count.split()[0].decode()} rows of {files[0]}{others} into stream {stream!r} "
        f"(key {key}), and this load's checkpoint does not know them: it would append them a second time. Finish the "
        "load with the version that began it, then move these files out of input.path; this version loads the other "
        f"files. Only if the rows of all these files are to be appended once more: DEL {key}"
    )
