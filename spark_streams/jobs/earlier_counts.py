"""Row counts that loads of versions before the sink's ledger have left: how many rows of each file are in the stream.

    rstream:load:{orders}:<name>    a hash: file → `<rows> <sum of fingerprints>`

No checkpoint holds these rows, so a load that finds them is refused.
"""

from __future__ import annotations

from collections.abc import Container

from spark_streams.errors import LedgerError
from spark_streams.jobs.file_log import normalize_path
from spark_streams.model.keys import key_beside
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.scan import matching_hashes


def require_uncounted(server: Server, stream: str, files: Container[str]) -> None:
    """Raise LedgerError if such a version has loaded rows of these files into the stream.

    A deleted stream holds no rows of them.
    """
    if not server.execute("EXISTS", stream):
        return
    prefix = key_beside(stream, "load") + b":"
    for key in matching_hashes(server, "rstream:load:*"):
        if not key.startswith(prefix) or b":" in key.removeprefix(prefix):
            continue  # another stream's key: its name continues after the hash tag
        flat = server.execute("HGETALL", key)
        counts = {normalize_path(name.decode()): value for name, value in zip(flat[0::2], flat[1::2], strict=True)}
        counted_files = sorted(file for file in counts if file in files)
        if counted_files:
            raise _refused(stream, key.decode(), counted_files, counts[counted_files[0]])


def _refused(stream: str, key: str, files: list[str], count: bytes) -> LedgerError:
    other_files = f", and rows of {len(files) - 1:,} other files" if len(files) > 1 else ""
    return LedgerError(
        f"an earlier version has loaded {count.split()[0].decode()} rows of {files[0]}{other_files} into stream "
        f"{stream!r} (key {key}). This load's checkpoint does not list them, so it would append them "
        "a second time. Finish the load with the version that began it, then move these files out of input.path; this "
        f"version loads the other files. Only if the rows of all these files are to be appended once more: DEL {key}"
    )
