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

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.wire import server_url
from spark_streams.connector.wire.address import Address

_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)", re.DOTALL)

Columns = tuple[tuple[str, str], ...]  # name and type


@dataclass(frozen=True)
class Dataset:
    namespace: str
    name: str
    columns: Columns = field(default=(), compare=False)  # empty: unknown
    group: str = ""  # of the reader
    consumer: str = field(default="", compare=False)  # of the reader


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
    parts, master = urlsplit(address.url), server_url.master_name(address.url)
    if address.nodes:
        host, port = address.nodes[0]
        place, typed = f"redis://{f'[{host}]' if ':' in host else host}:{port}", parts.path.strip("/")
    else:  # the bundled engine, or a socket: of one machine
        place, typed = f"{parts.scheme}://{socket.gethostname()}{parts.path}", ""
    database = parse_qs(parts.query).get("db", [typed.partition("/")[2] if master else typed])[0].lstrip("0")
    return "/".join((place, *filter(None, (master, database))))


def path_dataset(path: str, columns: Columns = ()) -> Dataset:
    """Return the dataset at a path, as Spark takes it."""
    match = _PATH.fullmatch(path)
    if match is None or match[1] == "file":
        return Dataset("file", os.path.abspath(path if match is None else match[3]), columns)
    scheme = "s3" if match[1] in ("s3a", "s3n") else match[1]
    user, at, host = (match[2] or "").rpartition("@")
    # abfss has container@account. A login has a colon.
    return Dataset(f"{scheme}://{host if ':' in user else user + at + host}", match[3].strip("/") or "/", columns)
