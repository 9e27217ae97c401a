"""What becomes of a query that is started again with its checkpoint, when hands were laid on its group. Pure text.

tests/source/group/test_hands.py starts queries and holds each of these against what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_streams.ids import StreamId
from spark_streams.operator_commands import replay_command
from spark_streams.retention.commit_mark import Mark

_NO_ACK = "(with noAck it sets the group back to its checkpoint, whatever stands here)"


def after_seek(stream: str, group: str, marks: Mapping[str, Mark], before: str, position: str) -> list[str]:
    """When a group was set from one position to another."""
    lines = []
    for query, mark in marks.items():
        is_back = StreamId.parse(position) < StreamId.parse(before)
        if mark.no_ack:
            lines.append(
                f"query {query!r} reads with noAck: started with its checkpoint, it sets the group back to its "
                f"checkpoint, whatever stands here; with a new checkpoint it reads from {position} on"
            )
            continue
        extra = f" {_NO_ACK}" if mark.holds else ""
        if is_back:
            lines.append(
                f"query {query!r}, started with its checkpoint, stops if that stands above {position} "
                "(RSTREAM_STREAM_STATE); with failOnDataLoss=false, if nobody else reads from the group, it sets the "
                "group to its checkpoint and reads nothing again. With a new checkpoint it reads from "
                f"{position} on{extra}"
            )
            if not mark.holds:
                lines.append(
                    f"for query {query!r} to read a part again with the checkpoint that it has, leave the group at "
                    f"{before} and run {replay_command(stream, group, StreamId.parse(position).next())}"
                )
        elif position != before:
            lines.append(
                f"query {query!r}, started with its checkpoint, goes on behind what is skipped, and does not count it "
                f"as lost; what is pending for it, it reads{extra}"
            )
    return lines


def after_taking(queries: Iterable[str]) -> list[str]:
    """When entries that were pending for queries were acknowledged, or handed to somebody else."""
    return [
        f"query {query!r}, started with its checkpoint: where a batch in its log held such entries, and nobody else "
        "was given any of its range, it reads that batch whole, from the stream; where others were, it stops "
        "(RSTREAM_DATA_LOSS), and with failOnDataLoss=false goes on without them. What no batch held yet is passed over"
        for query in queries
    ]


def after_releasing(query: str) -> list[str]:
    """When entries that were pending for a query were released."""
    return [
        f"query {query!r}, started with its checkpoint, reads a batch that is in its log again, whole, and takes the "
        "released entries like any query of the group: entries of that batch are read twice, entries that no batch "
        "held once. Release entries of a query if it is not to be started again"
    ]


def after_handing(query: str) -> list[str]:
    """When a query was handed entries."""
    return [f"query {query!r} reads them with its next batch, with the checkpoint that it has"]


def after_deleting_group(stream: str, group: str, committed: Mapping[str, str]) -> list[str]:
    """committed: up to where each query had."""
    return [
        f"query {query!r}, started with its checkpoint: with startingOffsets=earliest Spark has the group made again, "
        "and it goes on where its checkpoint stands; else it stops (RSTREAM_GROUP_MISSING, RSTREAM_DATA_LOSS), or with "
        "failOnDataLoss=false makes the group again there. It goes on as if nothing had happened after: rstream "
        f"groups create {stream} --group {group} --start {up_to} --yes. With a new checkpoint it begins at "
        "startingOffsets"
        for query, up_to in committed.items()
    ]


def what_waits(stream: str, entries: int) -> str:
    """A group is gone, and in this stream entries of it wait for another try, or have come back for one."""
    return (
        f"{entries:,} entries of the group in {stream!r}, which wait for another try, stay there: a query with "
        f"retryDelay of a group of that name reads them; rstream dead list {stream} shows them"
    )


def after_deleting_consumer(query: str, pending: int) -> list[str]:
    """pending: entries that were forgotten with it."""
    if not pending:
        return [f"query {query!r}, started with its checkpoint, enters the group again and goes on"]
    return [
        f"query {query!r}, started with its checkpoint, reads a batch that its log holds from the stream; where "
        "entries were reserved for one to come, it stops (RSTREAM_DATA_LOSS), or with failOnDataLoss=false, where "
        "nobody else reads from the group, sets that back and reads them. With a new checkpoint it passes over them"
    ]
