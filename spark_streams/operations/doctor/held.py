"""Checks of all streams and groups: groups that hold many entries back and that no client and no query uses, and large
entries. Nothing on the server changes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.printable import name_text
from spark_streams.base.units import counted
from spark_streams.connector.admin.groups import find_with_running_query
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.operator_commands import forget_command
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.scan import list_streams
from spark_streams.operations.doctor import large_entries
from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.monitor.held import Held, fetch_held, sorted_by_entries

_ABOUT = "groups"
ENTRIES, BYTES = 10_000, 10_000_000  # a group that holds less of both is not reported
SHARE = 0.1  # of the memory in use: a warning
_COUNTED = 1  # a lag that the server does not know is not counted


def check_cluster(address: Address, streams: Sequence[str], used_memory: int) -> list[Finding]:
    """Check the groups of a cluster."""
    try:
        with connect(address) as server:
            return check(server, streams, used_memory)
    except RStreamError as error:  # for example, a part of the cluster is down, which other findings report
        return [_unchecked(error)]


def check(server: Server, streams: Sequence[str], used_memory: int) -> list[Finding]:
    """Check the groups of these streams, or of all. Streams that the user may not see are left out. used_memory: of the
    server, in bytes; 0 if it is not known."""
    try:
        seen = survey(server, list(dict.fromkeys(streams)) or list_streams(server), _COUNTED, refused=lambda _: None)
        large = [held for held in fetch_held(server, seen) if _is_large(held)]
        return [*judge(_without_running(server, large), used_memory), *large_entries.judge(seen.streams)]
    except RStreamError as error:  # the check of rights names what the user lacks
        return [_unchecked(error)]


def judge(holders: Sequence[Held], used_memory: int) -> list[Finding]:
    """Return the finding of these groups. Pure."""
    if not holders:
        return []
    most, *others = sorted_by_entries(holders)
    together = sum(held.bytes or 0 for held in holders)
    more = f"; {counted(len(others), 'more group')} {'is' if len(others) == 1 else 'are'} like it" if others else ""
    return [
        Finding(
            Level.WARNING if used_memory and together >= SHARE * used_memory else Level.NOTE,
            _ABOUT,
            f"group {most.group!r} of stream {most.stream!r} {most}{more}",
            "another group of the stream no longer needs these entries, but trim=acked and onCommit keep them: the "
            "memory fills, and then nothing can be written",
            f"start the group's query; or, if the group is not needed, see what it holds: {_command(most)}; --yes "
            "after prune removes these entries, and the group's next query stops with RSTREAM_GROUP_FORGOTTEN",
        )
    ]


def _command(held: Held) -> str:
    is_text = name_text(held.group) == held.group and name_text(held.stream) == held.stream
    return forget_command(held.stream, held.group) if is_text else "rstream groups prune --hold --idle 1d"


def _is_large(held: Held) -> bool:
    return (held.entries or 0) >= ENTRIES or (held.bytes or 0) >= BYTES


def _without_running(server: Server, holders: Sequence[Held]) -> list[Held]:
    """Return the groups without a running query: no group is forgotten while a query has a lease in it."""
    running = find_with_running_query(server, [(held.stream, held.group) for held in holders])
    return [held for held in holders if (held.stream, held.group) not in running]


def _unchecked(error: RStreamError) -> Finding:
    return Finding(
        Level.NOTE, _ABOUT, f"groups that nobody uses cannot be looked for: {error}",
        "such a group may keep a stream long",
        "run rstream doctor again with the URL of an administrator, or when the other findings are settled",
    )  # fmt: skip
