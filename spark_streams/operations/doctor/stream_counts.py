"""Check of what the server counts of its streams: how large they are. Of the streams that are named also released
entries and idempotent adds. Nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.numbers import parse_number
from spark_streams.connector.admin.groups import released_in
from spark_streams.connector.errors import WrongKeyTypeError
from spark_streams.connector.wire.connection.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.replies.replies import is_wrong_type
from spark_streams.connector.wire.replies.xinfo import GroupInfo, groups_in, idempotent_adds_in
from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ServerFacts

_ABOUT = "streams"
_UNITS = "KMGTP"


def check(facts: ServerFacts) -> list[Finding]:
    """Return how many streams the database has, and how large the largest are, if INFO keysizes counts streams (the
    bundled engine; Redis 8.12). Pure."""
    sizes = facts.info.get(f"db{facts.database or 0}_distrib_streams_items", "")
    counts = {
        _entries(size): parse_number(count) or 0 for size, _, count in (p.partition("=") for p in sizes.split(","))
    }
    total = sum(counts.values())
    if not total:
        return []
    size = max(counts)
    entries = "no entries" if size == 0 else f"{size:,} to {2 * size - 1:,} entries" if size > 1 else "1 entry"
    largest = f"the largest has {entries}" if counts[size] == 1 else f"the {counts[size]:,} largest have {entries}"
    return [Finding(Level.OK, _ABOUT, f"{total:,} in this database; {largest}")]


def _entries(size: str) -> int:
    """Return `512`, `1K` or `2M` as a number."""
    unit = _UNITS.find(size[-1:]) + 1 if size else 0
    return (parse_number(size[:-1] if unit else size) or 0) << 10 * unit


def ask_streams(server: Connection, streams: Sequence[str]) -> list[Finding]:
    """Return the findings of these streams. Streams that do not exist, that the user may not see, or that are on
    another node of a cluster have none: doctor.rights and the other node report them."""
    replies = server.pipeline([("XINFO", word, stream) for stream in streams for word in ("STREAM", "GROUPS")])
    findings: list[Finding] = []
    for stream, description, groups in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_wrong_type(description):
            findings.append(_no_stream(stream))
        elif not isinstance(description, ReplyError) and not isinstance(groups, ReplyError):
            findings += [*_released(server, stream, groups_in(groups)), *_idempotent_adds(stream, description)]
    return findings


def _no_stream(stream: str) -> Finding:
    return Finding(
        Level.WARNING, _ABOUT, f"key {stream!r} is not a stream",
        f"queries and sinks of it fail ({WrongKeyTypeError.condition})", "name another stream, or delete the key",
    )  # fmt: skip


def _released(server: Connection, stream: str, groups: Sequence[GroupInfo]) -> list[Finding]:
    names = [group.name for group in groups if group.pending]
    replies = server.pipeline([("XPENDING", stream, name) for name in names])
    counts = [0 if isinstance(reply, ReplyError) else released_in(reply) for reply in replies]
    return [
        Finding(
            Level.NOTE, _ABOUT,
            f"stream {stream!r}: {count:,} entries of group {name.decode('utf-8', 'backslashreplace')!r} were released",
            "a consumer returned them (XNACK). The next batch of a query of this group takes them",
            f"start a query of the group. To list them: rstream pending {stream}",
        )
        for name, count in zip(names, counts, strict=True)
        if count
    ]  # fmt: skip


def _idempotent_adds(stream: str, description: Sequence[Reply]) -> list[Finding]:
    adds = idempotent_adds_in(description)
    if adds is None:
        return []
    counted = f"{adds.added:,} entries were added with XADD IDMP, {adds.duplicates:,} duplicates were recognized"
    remembers = f"{adds.messages:,} messages of {adds.producers:,} producers are remembered"
    return [Finding(Level.OK, _ABOUT, f"stream {stream!r}: {counted}; {remembers}")]
