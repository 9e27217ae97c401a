"""`rstream lag --max`: whether groups are too far behind, or missing, as one line and an exit code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.printable import name_text, printable
from spark_streams.base.units import count, duration
from spark_streams.connector.lag.survey import GroupLag, Survey
from spark_streams.connector.operator_commands import shell_line

FAILED, UNKNOWN = 3, 4  # exit codes
_SHOWN = 3  # missing groups that are named


@dataclass(frozen=True)
class Verdict:
    """The line, and the exit code: 0, FAILED if a group is too far behind or missing, UNKNOWN."""

    line: str
    code: int = 0


@dataclass(frozen=True)
class LagCheck:
    """The limits: undelivered entries of a group, and age of its oldest unacknowledged entry in seconds. None: no
    limit."""

    max_entries: int | None
    max_seconds: float | None

    def verdict(self, groups: Sequence[GroupLag], missing: Sequence[str]) -> Verdict:
        """Return the verdict on these groups. missing: from find_missing."""
        late = [group for group in groups if self._is_beyond(group)]
        unknown = [group for group in groups if self.max_seconds is not None and group.lag_ms is None]
        group_count = "1 group" if len(groups) == 1 else f"{len(groups):,} groups"
        lines = []
        if missing:
            lines.append(f"not found: {'; '.join(missing[:_SHOWN])}{_more(len(missing) - _SHOWN, '')}")
        if late:
            lines.append(f"behind: {_worst(late)}{_more(len(late) - 1, group_count)}")
        if lines:
            return Verdict(printable("; ".join(lines)), FAILED)
        if unknown:
            one = unknown[0]
            return Verdict(
                printable(
                    f"unknown: {one.group} of {one.stream} is {_behind(one)}; how many seconds is not known, because "
                    f"its entry IDs are not times{_more(len(unknown) - 1, group_count)}. Check the number of entries: "
                    "--max"
                ),
                UNKNOWN,
            )
        worst = max(groups, key=_distance)
        behind = f"; {_worst(groups)}" if worst.lag or worst.pending else ", none behind"
        return Verdict(printable(f"ok: {group_count}{behind}"))

    def _is_beyond(self, group: GroupLag) -> bool:
        if self.max_entries is not None and group.lag > self.max_entries:
            return True
        return self.max_seconds is not None and group.lag_ms is not None and group.lag_ms > self.max_seconds * 1000


def find_missing(
    found: Survey, by_word: Mapping[str, tuple[Sequence[str | bytes], bool]], group: str | None, address: str
) -> list[str]:
    """Return a line for each stream that was named and does not exist or lacks the group, and for each pattern without
    such a stream. by_word: the streams of each word, and whether it is a pattern; empty: all streams; group: None: any
    group."""
    with_group = {one.stream for one in found.groups if group in (None, one.group)}
    existing = {one.stream for one in found.streams}
    wanted = "group" if group is None else f"group {group!r}"
    if not by_word:
        return [] if with_group else [f"no {wanted} at {address}; rstream streams lists the streams and their groups"]
    missing = []
    for word, (names, is_pattern) in by_word.items():
        streams = [name_text(name) for name in names]
        if is_pattern:
            if with_group.isdisjoint(streams):
                article = "a group" if group is None else f"a {wanted}"
                missing.append(f"no stream that matches {word!r} has {article}; rstream streams lists the streams")
            continue
        for stream in streams:
            if stream not in existing:
                missing.append(f"no stream {stream!r} at {address}; rstream streams lists the streams")
            elif stream not in with_group:
                listing = shell_line(
                    ["groups", "list", "--", stream] if stream.startswith("-") else ["groups", "list", stream]
                )
                missing.append(f"stream {stream!r} has no {wanted}; {listing} lists its groups")
    return missing


def _more(number: int, of_groups: str) -> str:
    of = f" of {of_groups}" if of_groups else ""
    return f" ({number:,} more{of})" if number > 0 else ""


def _distance(group: GroupLag) -> tuple[int, int]:
    return group.lag_ms or 0, group.lag


def _worst(groups: Sequence[GroupLag]) -> str:
    worst = max(groups, key=_distance)
    return f"{worst.group} of {worst.stream} is {_behind(worst)}"


def _behind(group: GroupLag) -> str:
    entries = f"{count(group.lag, group.at_least)} {'entry' if group.lag == 1 else 'entries'}"
    age = "" if group.lag_ms is None else f", {duration(group.lag_ms)}"
    return f"{entries}{age} behind" + (f", {group.pending:,} pending" if group.pending else "")
