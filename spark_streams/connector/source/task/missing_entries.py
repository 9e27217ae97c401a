"""Numbers of entries that the tasks of a batch have found missing (failOnDataLoss=false), for the driver.

They are in a hash in the stream's slot, `rstream:missing:…`, with the field `<token> <run> <after>/<last>` for each
range that lacks entries. A second execution of a task writes the same field. A run that replays the batch may divide it
into other ranges. Missing entries stay missing, so the batch lacks as many as the run that has found most.

After the batch is committed, the driver reports the number and deletes the hash. If it is killed in between, the next
run reports the number once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from spark_streams.base.numbers import parse_number
from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection.server import Server


def missing_key(stream: str, member: Membership) -> bytes:
    """Return the key of the hash with the numbers of one stream."""
    return key_beside(stream, "missing", member.group, member.consumer)


def write_missing(server: Server, member: Membership, token: str, run: str, entries: Range, count: int) -> None:
    """Write that `count` entries of a range are missing. token: of the batch; run: name of the query's run. Ranges of
    both backlogs may begin at the same ID. Raises ServerError."""
    field = b"%b %b %b/%b" % (token.encode(), run.encode(), bytes(entries.after), bytes(entries.last))
    server.execute("HSET", missing_key(entries.stream, member), field, count)


def fetch_missing(server: Server, member: Membership, streams: Sequence[str], token: str) -> dict[str, int]:
    """Return how many entries of this batch are missing, for each stream that has such a hash. Raises ServerError."""
    replies = server.execute_all([("HGETALL", missing_key(stream, member)) for stream in streams])
    return {
        stream: missing_in(dict(zip(flat[0::2], flat[1::2], strict=True)), token)
        for stream, flat in zip(streams, replies, strict=True)
        if flat
    }


def missing_in(fields: Mapping[bytes, bytes], token: str) -> int:
    """Return how many entries of a batch these fields say are missing: those of other batches do not count. Pure."""
    by_run = Counter[bytes]()
    for field, value in fields.items():
        of_batch, run, _ = field.split(b" ")
        if of_batch == token.encode():
            by_run[run] += parse_number(value) or 0
    return max(by_run.values(), default=0)


def delete_missing(server: Server, member: Membership, streams: Iterable[str]) -> None:
    """Delete the numbers of these streams. Raises ServerError."""
    server.execute_all([("DEL", missing_key(stream, member)) for stream in streams])
