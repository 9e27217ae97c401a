"""Every key that the product makes on a server; docs/reference/keys.md lists them. Pure.

Those beside a stream stand in its own slot, so that one transaction may touch both (Redis Cluster).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from spark_streams.model.numbers import COUNT_MAX, whole

PREFIX = "rstream:"  # of every key of the product
RUNS = "rstream:runs"  # the highest number that a run of a sink was given
CLOSED = b""  # the field of a sink's record that is no stream: the last batch that is complete
SLOTS = 16384
_TAG = re.compile(rb"[^{]*\{([^}]+)\}", re.DOTALL)


def key_beside(stream: str | bytes, kind: str, *names: str) -> bytes:
    """`rstream:<kind>:{<stream>}:<name>…`: the stream's hash tag in braces, and its name behind where that is more."""
    raw = stream.encode() if isinstance(stream, str) else stream
    tag = hash_tag(raw)
    where = b"{%b}" % tag + (b"" if tag == raw else b":" + raw)
    return b":".join([b"rstream", kind.encode(), where, *[quote(name, safe="").encode() for name in names]])


def key_of_query(kind: str, group: str, consumer: str) -> bytes:
    """`rstream:<kind>:<group>:<consumer>`: what is known of a query as a whole, in whatever slot."""
    return b"rstream:%b:%b:%b" % (kind.encode(), quote(group, safe="").encode(), quote(consumer, safe="").encode())


NARROWED, LOSSY = "narrowed", "lossy"
ANY_RUN = "any"


def batch_kind_key(query: str) -> str:
    """Return the key in which the source's tasks report the query's micro-batches to the sink. Each field names one
    (`batch_kind_value`): NARROWED is only a piece of the batch of earlier runs; LOSSY has fewer entries than before."""
    return f"rstream:told:{query}"


def batch_kind_value(number: int, query_run: str) -> str:
    """Return a micro-batch's name in a field of `batch_kind_key`. The run is part of it: if the checkpoint is set back,
    another run has a batch of the same number. ANY_RUN: for an operator, the batch of this number in every run."""
    return f"{number}:{query_run}"


SESSIONS = "rstream:session:"


def session_key(scope: str, holder: str) -> str:
    """`rstream:session:<scope>:<holder>`: is there while the process that holds leases under this token lives. scope:
    the group of a query, or what else the process does."""
    return f"{SESSIONS}{quote(scope, safe='')}:{holder}"


def record_key(query: str) -> str:
    """The record of a sink's query: which streams its batches wrote to, and which batch is closed."""
    return f"rstream:sink:{query}"


def pace_key(name: str) -> str:
    """When the next rows of a paced write may be sent. name: of the write."""
    return f"rstream:pace:{name}"


def witness_key(query: str, number: int) -> str:
    """The witness of a sink's query, in a slot that goes by this number."""
    return f"rstream:witness:{{{number}}}:{query}"


def shards_key(stream: str) -> bytes:
    """What is known of a stream in shards as a whole, beside its name."""
    return key_beside(stream, "shards")


# Streams beside a stream: what waits for another try, and what has come back from there.
_RETRY, _RETURNED = "retry", "returned"
_OF_STREAM = r"(?s)rstream:{}:\{{([^}}]+)\}}(?::(.+))?:([^:]+)"
_RETRY_NAME = re.compile(_OF_STREAM.format(_RETRY) + ":([0-9]+)")
_RETURNED_NAME = re.compile(_OF_STREAM.format(_RETURNED))


class RetryStream(NamedTuple):
    """stream, group: whose entries it holds; attempts: how often these have failed, None: they have come back."""

    stream: str
    group: str
    attempts: int | None


def retry_stream(stream: str, group: str, attempts: int) -> str:
    """Where entries of a stream wait that the group has tried so often."""
    return key_beside(stream, _RETRY, group, str(attempts)).decode()


def returned_stream(stream: str, group: str) -> str:
    """Where they are read again, when they have waited."""
    return key_beside(stream, _RETURNED, group).decode()


def delays_key(stream: str, group: str) -> bytes:
    """Says how long entries wait, for whoever looks at them."""
    return key_beside(stream, "delays", group)


# Kinds of keys beside a stream, for a group and a consumer of it. Earlier versions wrote `claims`.
_OF_A_CONSUMER = ("lease", "committed", "first", "start", "notes", "claims", "attempts", "tried", "failure")


def keys_of_consumer(stream: str, group: str, consumer: str) -> list[tuple[str, bytes]]:
    """All that there may be of a consumer of a group beside a stream: kind and key of each."""
    return [(kind, key_beside(stream, kind, group, consumer)) for kind in _OF_A_CONSUMER]


def keys_of_group(stream: str, group: str, most_attempts: int) -> list[tuple[str, bytes]]:
    """All that there may be of the group as a whole beside a stream: kind and key of each. most_attempts: how often an
    entry may have failed that waits for another try."""
    retries = [(_RETRY, retry_stream(stream, group, n).encode()) for n in range(1, most_attempts + 1)]
    others = [("archive", key_beside(stream, "archive", group)), ("delays", delays_key(stream, group))]
    return [*others, *retries, (_RETURNED, returned_stream(stream, group).encode())]


def is_own(name: str) -> bool:
    """Whether a key's name is one of the product's."""
    return name.startswith(PREFIX)


def is_returned(stream: str) -> bool:
    """Whether a stream that a query reads is one of those that entries come back to."""
    return stream.startswith(f"rstream:{_RETURNED}:")


def is_beside(stream: str) -> bool:
    """Whether a name is one of those that streams beside a stream have, read_retry_stream can read it or not."""
    return is_returned(stream) or stream.startswith(f"rstream:{_RETRY}:")


def read_retry_stream(name: str) -> RetryStream | None:
    """What such a name says; None for any other."""
    found = _RETRY_NAME.fullmatch(name)
    attempts = None if found is None else whole(found[4], COUNT_MAX)
    if found is not None and attempts is None:
        return None
    found = found or _RETURNED_NAME.fullmatch(name)
    return None if found is None else RetryStream(found[2] or found[1], unquote(found[3]), attempts)


def origin_of(stream: str) -> str:
    """The stream that the entries of a returned stream come from; any other is its own."""
    told = read_retry_stream(stream) if is_returned(stream) else None
    return stream if told is None else told.stream


@lru_cache(maxsize=4096)
def slot_of(key: bytes) -> int:
    """Which of a cluster's 16,384 slots a key stands in. Source: Redis Cluster's specification."""
    found = _TAG.match(key)
    return crc16(key if found is None else found[1]) % SLOTS


def hash_tag(stream: bytes) -> bytes:
    """What to put in braces so that a key falls into this stream's slot. Source: Redis Cluster's specification."""
    found = _TAG.match(stream)
    if found is not None:
        return found[1]
    return stream if b"}" not in stream else tag_of_slot(crc16(stream) % SLOTS)


@lru_cache(maxsize=4096)
def tag_of_slot(slot: int) -> bytes:
    """The smallest number whose digits, in braces, put a key into this slot."""
    return b"%d" % _tags()[slot]


@lru_cache(maxsize=1)
def _tags() -> Mapping[int, int]:
    """That number for each slot. Finding all of them takes a tenth of a second; the largest one is 109,757."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(crc16(b"%d" % number) % SLOTS, number)
        number += 1
    return found


def crc16(data: bytes) -> int:
    """CRC16-CCITT (XMODEM), which gives a key its slot."""
    return binascii.crc_hqx(data, 0)
