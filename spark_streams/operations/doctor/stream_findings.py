"""Findings of streams and groups: how large they are, by the server's own counts; released entries and idempotent adds
of named ones; groups that hold many entries back and that nobody uses; large entries. Nothing on the server changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import name_text
from spark_streams.base.units import counted, size
from spark_streams.connector.admin.groups import find_with_running_query
from spark_streams.connector.errors import RStreamError, WrongKeyTypeError
from spark_streams.connector.lag.survey import GroupLag, StreamSummary, survey, trimmed_line
from spark_streams.connector.operator_commands import command_on, forget_command
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.replies import is_wrong_type
from spark_streams.connector.wire.scan import list_streams
from spark_streams.connector.wire.xinfo import GroupInfo, groups_in, idempotent_adds_in, released_in
from spark_streams.operations.doctor.server_facts import Findings, Level, ServerFacts, ServerFinding
from spark_streams.operations.monitor.held import Held, fetch_held, sorted_by_entries

_STREAMS = "streams"
_UNITS = "KMGTP"


def check_stream_sizes(facts: ServerFacts) -> Findings:
    """Return how many streams the database has, and how large the largest are, if INFO keysizes counts streams (the
    bundled engine; Redis 8.12). Pure."""
    sizes = facts.info.get(f"db{facts.database or 0}_distrib_streams_items", "")
    counts = {
        _entries(size): parse_number(count) or 0 for size, _, count in (p.partition("=") for p in sizes.split(","))
    }
    size = max(counts)
    entries = "no entries" if size == 0 else f"{size:,} to {2 * size - 1:,} entries" if size > 1 else "1 entry"
    largest = f"the largest has {entries}" if counts[size] == 1 else f"the {counts[size]:,} largest have {entries}"
    if total := sum(counts.values()):
        yield ServerFinding(Level.OK, _STREAMS, f"{total:,} in this database; {largest}")


def _entries(size: str) -> int:
    """Return `512`, `1K` or `2M` as a number."""
    unit = _UNITS.find(size[-1:]) + 1 if size else 0
    return (parse_number(size[:-1] if unit else size) or 0) << 10 * unit


def ask_streams(server: Connection, streams: Sequence[str]) -> Findings:
    """Return the findings of these streams. Streams that do not exist, that the user may not see, or that are on
    another node of a cluster have none: doctor.rights and the other node report them."""
    replies = server.pipeline([("XINFO", word, stream) for stream in streams for word in ("STREAM", "GROUPS")])
    for stream, description, groups in zip(streams, replies[0::2], replies[1::2], strict=True):
        if is_wrong_type(description):
            yield ServerFinding(
                Level.WARNING, _STREAMS, f"key {stream!r} is not a stream",
                f"queries and sinks of it fail ({WrongKeyTypeError.condition})",
                "name another stream, or delete the key",
            )  # fmt: skip
        elif not isinstance(description, ReplyError) and not isinstance(groups, ReplyError):
            yield from _released(server, stream, groups_in(groups))
            yield from _idempotent_adds(stream, description)


def _released(server: Connection, stream: str, groups: Sequence[GroupInfo]) -> Findings:
    names = [group.name for group in groups if group.pending]
    replies = server.pipeline([("XPENDING", stream, name) for name in names])
    for name, reply in zip(names, replies, strict=True):
        if not isinstance(reply, ReplyError) and (count := released_in(reply)):
            group = name.decode("utf-8", "backslashreplace")
            yield ServerFinding(
                Level.NOTE, _STREAMS, f"stream {stream!r}: {count:,} entries of group {group!r} were released",
                "a consumer returned them (XNACK). The next batch of a query of this group takes them",
                f"start a query of the group. To list them: {command_on(stream, 'pending')}",
            )  # fmt: skip


def _idempotent_adds(stream: str, description: Sequence[Reply]) -> Findings:
    if adds := idempotent_adds_in(description):
        counted = f"{adds.added:,} entries were added with XADD IDMP, {adds.duplicates:,} duplicates were recognized"
        remembers = f"{adds.messages:,} messages of {adds.producers:,} producers are remembered"
        yield ServerFinding(Level.OK, _STREAMS, f"stream {stream!r}: {counted}; {remembers}")


_GROUPS = "groups"
ENTRIES, BYTES = 10_000, 10_000_000  # a group that holds less of both is not reported
SHARE = 0.1  # of the memory in use: a warning
_COUNTED = 1  # a lag that the server does not know is not counted


def check_groups(address: Address, streams: Sequence[str], used_memory: int) -> Findings:
    """Check the groups of these streams, or of all. Streams that the user may not see are left out. used_memory: of the
    server, in bytes; 0 if it is not known."""
    try:
        with connect(address) as server:
            names = list(dict.fromkeys(streams)) or list_streams(server)
            seen = survey(server, names, _COUNTED, refused=lambda _: None)
            holders = fetch_held(server, seen)
            large = [held for held in holders if (held.entries or 0) >= ENTRIES or (held.bytes or 0) >= BYTES]
            # No group is forgotten while a query has a lease in it.
            running = find_with_running_query(server, [(held.stream, held.group) for held in large])
            yield from judge_groups([held for held in large if (held.stream, held.group) not in running], used_memory)
            yield from judge_trimmed(seen.groups)
            yield from judge_entry_sizes(seen.streams)
    except RStreamError as error:  # a part of a cluster is down, or a right is missing: other findings report it
        yield ServerFinding(
            Level.NOTE, _GROUPS, f"groups that nobody uses cannot be looked for: {error}",
            "such a group may keep a stream long",
            "run rstream doctor again with the URL of an administrator, or when the other findings are settled",
        )  # fmt: skip


def judge_groups(holders: Sequence[Held], used_memory: int) -> Findings:
    """Yield the finding of these groups. Pure."""
    together = sum(held.bytes or 0 for held in holders)
    for most in sorted_by_entries(holders)[:1]:
        yield ServerFinding(
            Level.WARNING if used_memory and together >= SHARE * used_memory else Level.NOTE, _GROUPS,
            f"group {most.group!r} of stream {most.stream!r} {most}{_more(len(holders) - 1)}",
            "another group of the stream no longer needs these entries, but trim=acked and onCommit keep them: the "
            "memory fills, and then nothing can be written",
            f"start the group's query; or, if the group is not needed, see what it holds: {_command(most)}; --yes "
            "after prune removes these entries, and the group's next query stops with RSTREAM_GROUP_FORGOTTEN",
        )  # fmt: skip


def judge_trimmed(groups: Sequence[GroupLag]) -> Findings:
    """Yield the finding of groups that have lost entries by trimming. Pure."""
    lost = sorted((one for one in groups if one.trimmed), key=lambda one: -(one.trimmed or 0))
    for most in lost[:1]:
        yield ServerFinding(
            Level.WARNING if any(one.is_active for one in lost) else Level.NOTE, _GROUPS,
            f"{trimmed_line(most)}{_more(len(lost) - 1)}", "the group does not receive these entries",
            "trim by a longer limit, or only what all groups have acknowledged: rstream trim --acked",
        )  # fmt: skip


def _more(others: int) -> str:
    return f"; {counted(others, 'more group')} {'is' if others == 1 else 'are'} like it" if others else ""


def _command(held: Held) -> str:
    is_text = name_text(held.group) == held.group and name_text(held.stream) == held.stream
    return forget_command(held.stream, held.group) if is_text else "rstream groups prune --hold --idle 1d"


LARGE_BYTES = 1_000_000
_NAMED = 5  # streams


def judge_entry_sizes(streams: Sequence[StreamSummary]) -> Findings:
    """Yield the finding of those streams that have a large entry, the one with the largest first."""
    large = sorted((one for one in streams if one.entry_bytes > LARGE_BYTES), key=lambda one: -one.entry_bytes)
    named = ", ".join(f"{one.stream!r} ({size(one.entry_bytes)})" for one in large[:_NAMED])
    more = f" and {counted(len(large) - _NAMED, 'more stream')}" if len(large) > _NAMED else ""
    if large:
        yield ServerFinding(
            Level.NOTE, _STREAMS, f"entries above {size(LARGE_BYTES)}: {named}{more}",
            "the server, a client and a task each hold such an entry in memory as a whole",
            "store large values elsewhere, and put their names into the entries",
        )  # fmt: skip
