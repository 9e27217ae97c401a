"""Forget groups that hold entries back which no other group needs (the rules: connector.retention)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_streams.base.pattern import NamesAndPatterns
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.groups import GroupName, fetch_consumers, fetch_group, fetch_readers, is_idle
from spark_streams.connector.errors import GroupInUseError
from spark_streams.connector.lag.survey import survey
from spark_streams.connector.retention import record_forgotten
from spark_streams.connector.wire.connection.server import Server
from spark_streams.operations.groups.prune import KeptGroup, possible_reader
from spark_streams.operations.monitor.held import Held, fetch_held

_COUNTED = 1  # a lag that the server does not know is not counted: it stays unknown


def find_held(server: Server, streams: Sequence[str], groups: Sequence[str], exact: bool, idle_ms: int) -> list[Held]:
    """Return the groups that hold entries back and whose consumers are all idle for this time. A group behind which no
    entry is left holds none: to forget it would only stop its query. groups: names or patterns, empty for all; exact:
    all are names. Raises ServerError."""
    found = fetch_held(server, survey(server, streams, _COUNTED), idle_ms, measured=None)
    # A name that is not UTF-8 has another text, and cannot be named on a command line.
    idle = [held for held in found if held.entries != 0 and name_text(held.group) == held.group]
    wanted = NamesAndPatterns.divide(groups, {*groups} if exact else {held.group for held in idle})
    return [held for held in idle if not groups or wanted.selects(held.group)]


def find_undecided(server: Server, holders: Sequence[Held], idle_ms: int, now_ms: int) -> list[KeptGroup]:
    """Return those of the groups that may have a reader, because the server does not show attempts to read. Raises
    StreamStateError, ServerError."""
    snapshots = [fetch_group(server, held.stream, held.group) for held in holders]
    why = [
        (snapshot, possible_reader(server, snapshot, idle_ms, now_ms))
        for snapshot in snapshots
        if not snapshot.shows_attempts
    ]
    return [KeptGroup(snapshot.stream, snapshot.group, reason) for snapshot, reason in why if reason]


def forget_group(server: Server, held: Held, idle_ms: int, forgotten: set[GroupName]) -> Held:
    """Record that a group is forgotten, and remove the entries that only forgotten groups hold back. Return it with
    their number. forgotten: those of this call's command, to which the group is added. Raises GroupInUseError."""
    group = (held.stream.encode(), held.group.encode())
    readers = fetch_readers(server, [group[0]])
    consumers = fetch_consumers(server, [group] if group in readers else []).get(group, [])
    if not is_idle(consumers, idle_ms) or record_forgotten(server, group, readers[group].info, consumers) is None:
        raise GroupInUseError(
            f"group {held.group!r} of stream {held.stream!r} is in use now, and is not forgotten. Repeat the command "
            "for the other groups"
        )
    forgotten.add(group)
    needed = [reader.needed for name, reader in readers.items() if name not in forgotten]
    removed = server.execute("XTRIM", held.stream, "MINID", "=", str(min(needed))) if needed else 0
    return replace(held, removed=removed)
