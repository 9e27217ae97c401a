"""Names of datasets, by OpenLineage's rules: a namespace for the server or the store, and a name within it. Pure.

redis://host:6379     orders      a stream in database 0; redis://host:6379/2: in database 2
redis://s1:26379/m    orders      of the master m that the sentinels name
file                  /out/rows   a path of this machine
s3://bucket           rows        a path of a store
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from spark_streams.options.sink_options import SinkOptions
from spark_streams.shards.names import Shard
from spark_streams.wire.address.address import Address

_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)", re.DOTALL)

Columns = tuple[tuple[str, str], ...]  # name and type


@dataclass(frozen=True)
class Dataset:
    """A stream or a table. columns: empty if unknown; group, consumer: of the reader."""

    namespace: str
    name: str
    columns: Columns = field(default=(), compare=False)
    group: str = ""
    consumer: str = field(default="", compare=False)


def stream_dataset(
    address: Address, stream: str, columns: Columns = (), group: str = "", consumer: str = ""
) -> Dataset:
    """Return the dataset of a stream. A shard is part of the stream whose shard it is."""
    shard = Shard.parse(stream)
    return Dataset(_namespace(address), stream if shard is None else shard.stream, columns, group, consumer)


def sink_dataset(options: SinkOptions, columns: Columns = ()) -> Dataset | None:
    """Return the dataset of a sink's stream, None if only its rows name streams."""
    return None if options.stream is None else stream_dataset(options.address, options.stream, columns)


def _namespace(address: Address) -> str:
    parts = urlsplit(address.url)
    inner = parts.path.rstrip("/").removesuffix("/0")
    if not inner or not address.nodes:
        inner += f"/{number}" if (number := parse_qs(parts.query).get("db", ["0"])[0]) != "0" else ""
    if not address.nodes:  # the bundled engine, or a socket: of one machine
        return f"{parts.scheme}://{socket.gethostname()}{inner}"
    host, port = address.nodes[0]
    return f"redis://{f'[{host}]' if ':' in host else host}:{port}{inner}"


def path_dataset(path: str, columns: Columns = ()) -> Dataset:
    """Return the dataset at a path, as Spark takes it."""
    match = _PATH.fullmatch(path)
    if match is None or match[1] == "file":
        return Dataset("file", os.path.abspath(path if match is None else match[3]), columns)
    scheme = "s3" if match[1] in ("s3a", "s3n") else match[1]
    user, at, host = (match[2] or "").rpartition("@")
    # abfss has container@account. A login has a colon.
    return Dataset(f"{scheme}://{host if ':' in user else user + at + host}", match[3].strip("/") or "/", columns)
