"""Sample entries of some streams, to infer a schema from. Nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch.plan import fetch_inputs
from spark_streams.connector.source.batch.stream_bounds import Narrowing
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.stream_names import with_shards
from spark_streams.connector.wire.connection.server import Server

STREAMS = 20  # at most


def sample(server: Server, options: BatchSourceOptions, limits: Limits = LIMITS) -> list[Sequence[bytes]]:
    """Return the fields of the oldest and newest entries of each stream: [name, value, name, value …].

    Raises SchemaError if there is no entry, StreamMissingError if a stream of `streams` does not exist.
    """
    heads = fetch_inputs(server, with_shards(server, options), Narrowing())
    non_empty = {stream: head for stream, head in heads.items() if head.length}
    sampled = dict(list(non_empty.items())[:STREAMS])
    if not sampled:
        read = ", ".join(list(heads)[:5]) or f"streamsPattern={options.streams_pattern}"
        raise SchemaError(f"inferSchema found no entry in {read} at {server.address}. Pass a schema to .schema(…).")
    commands: list[tuple[str | int, ...]] = []
    for stream, head in sampled.items():
        fitting = limits.sample_bytes // (2 * len(sampled) * max(1, head.entry_bytes))
        count = max(1, min(limits.sample_entries, fitting))
        commands.append(("XRANGE", stream, "-", "+", "COUNT", count))
        if head.length > count:
            commands.append(("XREVRANGE", stream, "+", "-", "COUNT", min(count, head.length - count)))
    entries: list[Sequence[bytes]] = []
    for reply in server.execute_each(commands):
        entries += [fields for _id, fields in reply]
    return entries
