"""Check of what the server counts of its streams: how large they are. Of the streams that are named also released
entries and idempotent adds. Nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ServerFacts
from spark_streams.errors import ServerReplyError, WrongKeyTypeError
from spark_streams.model.numbers import parse_number
from spark_streams.monitor.groups import StreamView, view_streams
from spark_streams.wire.connection.connection import Connection

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
    least = max(counts)
    of_largest = "no entries" if least == 0 else f"{least:,} to {2 * least - 1:,} entries" if least > 1 else "1 entry"
    largest = (
        f"the largest has {of_largest}" if counts[least] == 1 else f"the {counts[least]:,} largest have {of_largest}"
    )
    return [Finding(Level.OK, _ABOUT, f"{total:,} in this database; {largest}")]


def _entries(size: str) -> int:
    """Return `512`, `1K` or `2M` as a number."""
    unit = _UNITS.find(size[-1:]) + 1 if size else 0
    return (parse_number(size[:-1] if unit else size) or 0) << 10 * unit


def ask_streams(server: Connection, streams: Sequence[str]) -> list[Finding]:
    """Return the findings of these streams. Streams that the user may not see, or that are on another node of a
    cluster, have none: doctor.rights and the other node report them."""
    findings: list[Finding] = []
    for stream in streams:
        try:
            views = view_streams(server, [stream], count_released=True)
        except WrongKeyTypeError as error:
            findings.append(
                Finding(
                    Level.WARNING, _ABOUT, f"key {stream!r} is not a stream",
                    f"queries and sinks of it fail ({error.condition})", "name another stream, or delete the key",
                )
            )  # fmt: skip
            continue
        except ServerReplyError:
            continue
        findings += [finding for view in views for finding in of_stream(view)]
    return findings


def of_stream(view: StreamView) -> list[Finding]:
    """Return the findings of a stream. Pure."""
    findings = [
        Finding(
            Level.NOTE, _ABOUT,
            f"stream {view.stream!r}: {group.released:,} entries of group {group.group!r} were released (XNACK)",
            "they belong to no consumer until the next batch of a query of this group takes them",
            f"start a query of the group. To list them: rstream pending {view.stream}",
        )
        for group in view.groups
        if group.released
    ]  # fmt: skip
    adds = view.idempotent
    if adds is not None:
        counted = f"{adds.added:,} entries were added with XADD IDMP, {adds.duplicates:,} duplicates were recognized"
        remembers = f"{adds.messages:,} messages of {adds.producers:,} producers are remembered"
        findings.append(Finding(Level.OK, _ABOUT, f"stream {view.stream!r}: {counted}; {remembers}"))
    return findings
