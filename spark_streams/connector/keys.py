"""Names of micro-batches, and of all keys that the product creates on a server (docs/reference/keys.md). Pure.

Keys beside a stream are in the stream's slot, so one transaction can change both (Redis Cluster).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from spark_streams.base.numbers import COUNT_MAX, parse_number

PREFIX = "rstream:"  # of every key of the product
RUNS = "rstream:runs"  # the highest number of a sink's run
CLOSED = b""  # field of a sink's record that is not a stream's name: the last batch that is complete
DONE = "done"  # field of a stream's head: the last batch that is complete in this stream
SLOTS = 16384
_TAG = re.compile(rb"[^{]*\{([^}]+)\}", re.DOTALL)


def key_beside(stream: str | bytes, kind: str, *names: str) -> bytes:
    """Return `rstream:<kind>:{<tag>}:<name>…`, with the stream's hash tag in braces. If the tag is not the stream's
    complete name, the name follows it."""
    raw = stream.encode("utf-8", "surrogateescape") if isinstance(stream, str) else stream
    tag = hash_tag(raw)
    where = b"{%b}" % tag + (b"" if tag == raw else b":" + raw)
    return b":".join([b"rstream", kind.encode(), where, *[_quoted(name) for name in names]])


@lru_cache(maxsize=256)
def _quoted(name: str) -> bytes:
    """Return a name as part of a key. The same few names are in the keys of all streams."""
    return quote(name, safe="", errors="surrogateescape").encode()


def key_of_query(kind: str, group: str, consumer: str) -> bytes:
    """Return `rstream:<kind>:<group>:<consumer>`: a key of the query, in any slot."""
    return b"rstream:%b:%b:%b" % (kind.encode(), _quoted(group), _quoted(consumer))


NARROWED, LOSSY = "narrowed", "lossy"
ANY_RUN = "any"


def batch_kind_key(query: str) -> str:
    """Return the key of the hash in which the source's tasks report the query's micro-batches to the sink. Each field
    (`batch_kind_field`) has the kind of one: NARROWED is only a piece of the batch of earlier runs; LOSSY has fewer
    entries than before."""
    return f"rstream:told:{query}"


def batch_kind_field(kind: str, number: int, query_run: str) -> str:
    """Return the field of `batch_kind_key` that says that a micro-batch is of this kind. It names the batch, so a late
    task of an earlier one changes nothing. The run is part of it: if the checkpoint is set back, another run has a
    batch of the same number. ANY_RUN: for an operator, the batch of this number in every run."""
    return f"{kind} {number}:{query_run}"


def number_of_kind_field(field: bytes) -> int | None:
    """Return the number of the batch whose kind a field of `batch_kind_key` says; None if it says another thing."""
    kind, _, batch = field.partition(b" ")
    return parse_number(batch.partition(b":")[0]) if kind in (NARROWED.encode(), LOSSY.encode()) else None


SESSIONS = "rstream:session:"


def session_key(scope: str, holder: str) -> str:
    """Return `rstream:session:<scope>:<holder>`: exists while the process lives that holds leases under this token.
    scope: the group of a query, or the name of another activity."""
    return f"{SESSIONS}{quote(scope, safe='')}:{holder}"


def record_key(query: str) -> str:
    """Return the key of a sink's record for a query: the streams of its batches, and the batch that is closed."""
    return f"rstream:sink:{query}"


def head_key(stream: bytes, query: str) -> bytes:
    """Return the key of the head of a stream's ledger for a query."""
    return key_beside(stream, "sink", query)


PROBE = "rstream-probe:"


def probe_group(group: str, consumer: str) -> str:
    """Return `rstream-probe:<group>:<consumer>`: the scratch group of a query without a pending list, which exists
    while a trigger looks for the end of its batch."""
    return f"{PROBE}{_quoted(group).decode()}:{_quoted(consumer).decode()}"


def pace_key(name: str) -> str:
    """Return the key with the time when the next rows of a paced write may be sent. name: of the write."""
    return f"rstream:pace:{name}"


def shards_key(stream: str) -> bytes:
    """Return the key of a stream in shards: how many there are."""
    return key_beside(stream, "shards")


def origins_key(stream: str) -> bytes:
    """Return the key beside a dead-letter stream with a field for each origin of its dead letters (`origin_field`).

    Only programs that write dead letters may write to it. A producer may not, so a forged dead letter adds no origin.
    """
    return key_beside(stream.encode(errors="surrogateescape"), "origins")


def origin_field(stream: str, group: str) -> bytes:
    """Return the field of a stream and a group from which dead letters come."""
    return " ".join(quote(name, safe="", errors="surrogateescape") for name in (stream, group)).encode()


# Streams beside a stream: entries that wait for a retry, and returned entries.
_RETRY, _RETURNED = "retry", "returned"
_OF_STREAM = r"(?s)rstream:{}:\{{([^}}]+)\}}(?::(.+))?:([^:]+)"
_RETRY_NAME = re.compile(_OF_STREAM.format(_RETRY) + ":([0-9]+)")
_RETURNED_NAME = re.compile(_OF_STREAM.format(_RETURNED))


class RetryStream(NamedTuple):
    """stream, group: of the entries that it holds; attempts: how often these have failed, None: returned entries."""

    stream: str
    group: str
    attempts: int | None


def retry_stream(stream: str, group: str, attempts: int) -> str:
    """Return the name of the stream in which entries wait that the group has tried this many times."""
    return key_beside(stream, _RETRY, group, str(attempts)).decode()


def returned_stream(stream: str, group: str) -> str:
    """Return the name of the stream from which the group reads returned entries, after their delay."""
    return key_beside(stream, _RETURNED, group).decode()


def delays_key(stream: str, group: str) -> bytes:
    """Return the key with the retry delays of a group, for commands and metrics that show them."""
    return key_beside(stream, "delays", group)


def copied_key(stream: str, group: bytes) -> bytes:
    """Return the key with the position that `rstream copy --groups` gave a group."""
    return key_beside(stream.encode(errors="surrogateescape"), "copied", quote(group, safe=""))


def forgotten_key(stream: str | bytes, group: str) -> bytes:
    """Return the key with the record of a group that no longer holds entries back (connector.retention)."""
    return key_beside(stream, "forgotten", group)


# Kinds of keys beside a stream, for a group and a consumer of it.
_OF_A_CONSUMER = ("lease", "committed", "first", "notes", "missing", "attempts", "tried", "failure")


def keys_of_consumer(stream: str, group: str, consumer: str) -> list[tuple[str, bytes]]:
    """Return kind and key of all keys that a consumer of a group may have beside a stream."""
    return [(kind, key_beside(stream, kind, group, consumer)) for kind in _OF_A_CONSUMER]


def keys_of_group(stream: str, group: str, max_attempts: int) -> list[tuple[str, bytes]]:
    """Return kind and key of all keys that a group may have beside a stream, without those of its consumers.
    max_attempts: how often an entry that waits for a retry may have failed."""
    retries = [(_RETRY, retry_stream(stream, group, n).encode()) for n in range(1, max_attempts + 1)]
    fixed = [("archive", key_beside(stream, "archive", group)), ("delays", delays_key(stream, group))]
    fixed.append(("forgotten", forgotten_key(stream, group)))
    fixed.append(("copied", copied_key(stream, group.encode(errors="surrogateescape"))))
    return [*fixed, *retries, (_RETURNED, returned_stream(stream, group).encode())]


def is_product_key(name: str) -> bool:
    """Whether a key belongs to the product."""
    return name.startswith(PREFIX)


def is_returned(stream: str) -> bool:
    """Whether a stream that a query reads holds returned entries."""
    return stream.startswith(f"rstream:{_RETURNED}:")


def is_retry_or_returned(stream: str) -> bool:
    """Whether a name begins as those of retry streams and streams of returned entries do."""
    return is_returned(stream) or stream.startswith(f"rstream:{_RETRY}:")


def read_retry_stream(name: str) -> RetryStream | None:
    """Parse the name of a retry stream or of a stream of returned entries. None for any other name."""
    match = _RETRY_NAME.fullmatch(name)
    attempts = None if match is None else parse_number(match[4], COUNT_MAX)
    if match is not None and attempts is None:
        return None
    match = match or _RETURNED_NAME.fullmatch(name)
    return None if match is None else RetryStream(match[2] or match[1], unquote(match[3]), attempts)


def origin_of(stream: str) -> str:
    """Return the stream whose returned entries a stream holds; for any other stream, the stream itself."""
    retry = read_retry_stream(stream) if is_returned(stream) else None
    return stream if retry is None else retry.stream


@lru_cache(maxsize=4096)
def slot_of(key: bytes) -> int:
    """Return the slot of a key, of a cluster's 16,384: its CRC16-CCITT (XMODEM). Source: Redis Cluster's
    specification."""
    match = _TAG.match(key)
    return binascii.crc_hqx(key if match is None else match[1], 0) % SLOTS


def hash_tag(stream: bytes) -> bytes:
    """Return the text in braces that puts a key into this stream's slot. Source: Redis Cluster's specification."""
    match = _TAG.match(stream)
    if match is not None:
        return match[1]
    return stream if b"}" not in stream else tag_of_slot(slot_of(stream))


@lru_cache(maxsize=4096)
def tag_of_slot(slot: int) -> bytes:
    """Return the smallest number whose digits, in braces, put a key into this slot."""
    return b"%d" % _tags()[slot]


@lru_cache(maxsize=1)
def _tags() -> Mapping[int, int]:
    """Return that number for each slot. This takes a tenth of a second; the largest number is 109,757."""
    numbers: dict[int, int] = {}
    number = 0
    while len(numbers) < SLOTS:
        numbers.setdefault(binascii.crc_hqx(b"%d" % number, 0) % SLOTS, number)
        number += 1
    return numbers


# -- micro-batches, for the sink and in the tables that jobs write -----------------------------------------------------

# In the summary of an Iceberg snapshot: the `application`, and the number of the batch.
ICEBERG_QUERY, ICEBERG_BATCH = "spark-streams.query", "spark-streams.batch"


class MicroBatchName(NamedTuple):
    """query: ID of the query; number: of the batch; query_run: Spark's ID of the run, which has one batch a number."""

    query: str
    number: int
    query_run: str = ""


def partition_name(query: str, number: int) -> str:
    """Return the name of a batch as the partition `batch` of a table of files has it."""
    return f"b{query[:8]}-{number}"


def application(query: str, output: str) -> str:
    """Return the name of an output of a query in the transactions of a table."""
    return f"{query}:{output}"
