"""The streaming reader that Spark drives: on the driver it reserves, plans and settles; in a task it reads.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `latestOffset(start)` proves that
everything up to `start` is in the commit log (FACTS S4), so it settles that first, then reserves the next batch: first
what a crash left pending above `start`, then new entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, StreamStateError, UnsupportedError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.columns import Columns
from spark_streams.source.dead import Dead
from spark_streams.source.group import (
    GroupState,
    Membership,
    StreamState,
    create_groups,
    first_positions,
    look,
    stream_states,
)
from spark_streams.source.offsets import Offset, Share
from spark_streams.source.pending import PendingRange, pending_runs, settle
from spark_streams.source.plan import Run, Task, share, tasks
from spark_streams.source.read import read_task
from spark_streams.source.reserve import STEP, Wanted, reserve
from spark_streams.wire.connection import Connection

_ENDLESS = 1 << 62  # a backlog that the server cannot count


def _lost(run: Run, count: int) -> None:
    """Entries that are gone where that is allowed: passed over."""


def _unreadable(streams: str | pa.Array, dead: Dead) -> None:
    raise UnsupportedError("mode=DEADLETTER cannot write letters yet; choose PERMISSIVE, DROPMALFORMED or FAILFAST")


class RunPartition(InputPartition):
    """One task's share of a micro-batch."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """format("rstream") for readStream. One object lives on the driver for the whole run of a query (FACTS S1)."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._member = Membership(options["streams"], options["group"], options["consumer"])
        self._server: Connection | None = None
        self._joined: set[str] = set()  # streams that are known to have the group
        self._turn = 0  # triggers so far
        self._settled: dict[str, StreamId] = {}
        self._reserved: tuple[Offset, Offset, list[Run]] | None = None
        self._until: Mapping[str, StreamState] | None = None  # where an AvailableNow run ends
        self._heads: Mapping[str, StreamState] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader without its connection and its memory of batches."""
        return {**self.__dict__, "_server": None, "_reserved": None, "_heads": {}}

    # -- on the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts; the group pins it on the server, so it may be asked again (S2)."""
        self._join(self._member.streams)
        return self._offset(first_positions(self._connection(), self._member)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxEntriesPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = stream_states(self._connection(), self._member.streams)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle up to `start`, reserve the next batch, and return its end; `start` itself where there is nothing."""
        begin = self._read_offset(start)
        # Streams that the query was given since; the others' groups must be there, or something is lost.
        self._join([stream for stream in self._member.streams if stream not in begin.positions])
        self._settle(begin)
        self._turn += 1
        self._heads, states = look(self._connection(), self._member, self._member.streams)
        self._check_position(begin, states)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        runs = self._leftovers(begin, states, most) or self._new_entries(states, most)
        if not runs:
            return start
        end = begin.after(runs)
        self._reserved = (begin, end, runs)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._offset({stream: state.last for stream, state in self._heads.items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch as tasks. After a restart the pending list tells what the batch held (FACTS S5)."""
        begin, stop = self._read_offset(start), self._read_offset(end)
        if self._reserved is not None and self._reserved[:2] == (begin, stop):
            runs = self._reserved[2]
        else:
            runs = self._pending_between(begin, stop)
        return [RunPartition(task) for task in tasks(runs, self._options["entriesPerPartition"])]

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(self._read_offset(end))

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RunPartition)
        with Connection(self._options.address) as server:
            yield from read_task(
                server, self._member, partition.task, self._columns, self._options["failOnDataLoss"], _lost, _unreadable
            )

    # -- parts of a trigger ------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        if self._server is None:
            self._server = Connection(self._options.address)
        return self._server

    def _offset(self, positions: Mapping[str, StreamId]) -> Offset:
        return Offset(self._member.group, self._member.consumer, positions)

    def _read_offset(self, value: Mapping[str, Any]) -> Offset:
        """An offset of the log. Raises OffsetError where it belongs to another group or consumer: their pending
        entries are not ours to read or to settle."""
        offset = Offset.from_json(value)
        if (offset.group, offset.consumer) != (self._member.group, self._member.consumer):
            raise OffsetError(
                f"the checkpoint belongs to consumer {offset.consumer!r} of group {offset.group!r}, and the query is "
                f"consumer {self._member.consumer!r} of group {self._member.group!r}: set these options back, "
                "or start with a new checkpoint"
            )
        return offset

    def _join(self, streams: Sequence[str]) -> None:
        """Make the group on streams where this run has not yet seen it."""
        new = [stream for stream in streams if stream not in self._joined]
        create_groups(self._connection(), self._member, new, self._options["startingOffsets"])
        self._joined.update(new)

    def _settle(self, up_to: Offset) -> None:
        """Acknowledge our entries up to `up_to`, on the streams where that has moved."""
        moved = [stream for stream in self._member.streams if self._settled.get(stream) != up_to[stream]]
        settle(self._connection(), self._member, [PendingRange(stream, up_to[stream]) for stream in moved])
        self._settled.update({stream: up_to[stream] for stream in moved})

    def _check_position(self, begin: Offset, states: Mapping[str, GroupState]) -> None:
        """The group must stand where this query has come, or beyond. Raises StreamStateError, DataLossError."""
        for stream, state in states.items():
            if state.last_delivered < begin[stream]:
                raise StreamStateError(
                    f"group {self._member.group!r} of stream {stream!r} stands at {state.last_delivered}, below the "
                    f"checkpoint's {begin[stream]}: it was made anew or set back; set it to the checkpoint's position "
                    "(XGROUP SETID), or start with a new checkpoint"
                )
            if not self._options["failOnDataLoss"]:
                continue
            if stream in begin.shares and not state.known and state.last_delivered > begin[stream]:
                raise DataLossError(
                    f"group {self._member.group!r} of stream {stream!r} no longer knows consumer "
                    f"{self._member.consumer!r}: it was made anew, or the consumer was deleted, and what lies between "
                    f"the checkpoint's {begin[stream]} and the group's {state.last_delivered} would be passed over; "
                    "set the group back (XGROUP SETID), or set failOnDataLoss=false"
                )
            lost = self._trimmed_unread(self._heads[stream], state)
            if lost > 0:
                raise DataLossError(
                    f"stream {stream!r}: {lost} entries above {state.last_delivered} were trimmed or deleted before "
                    f"group {self._member.group!r} read them; keep the stream longer than the lag of its slowest "
                    "group, or set failOnDataLoss=false to go on without them"
                )

    @staticmethod
    def _trimmed_unread(head: StreamState, state: GroupState) -> int:
        """How many entries went from the head of the stream before the group came to them, as far as can be told."""
        if head.first is None or head.added is None or state.entries_read is None:
            return 0
        passed = head.first > state.last_delivered or head.length == 0
        return head.added - head.length - state.entries_read if passed else 0

    def _leftovers(self, begin: Offset, states: Mapping[str, GroupState], most: int | None) -> list[Run]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {stream: state.ours for stream, state in states.items() if state.ours}
        allowed = backlog if most is None else share(most, backlog, self._turn)
        size = self._options["entriesPerPartition"]
        ranges = [PendingRange(stream, MAX_ID, begin[stream], most=entries) for stream, entries in allowed.items()]
        return pending_runs(self._connection(), self._member, ranges, size)

    def _new_entries(self, states: Mapping[str, GroupState], most: int | None) -> list[Run]:
        backlog = {stream: self._backlog(stream, state) for stream, state in states.items()}
        backlog = {stream: entries for stream, entries in backlog.items() if entries > 0}
        allowed = backlog if most is None else share(most, backlog, self._turn)
        ends = self._until or self._heads
        wanted = {s: Wanted(entries, ends[s].last) for s, entries in allowed.items() if entries > 0}
        step = min(STEP, self._options["entriesPerPartition"])
        return reserve(self._connection(), self._member, wanted, states, step)

    def _backlog(self, stream: str, state: GroupState) -> int:
        """How many entries the group has yet to deliver, up to where this trigger or this run may go.

        The server's counts can be wrong (XGROUP … ENTRIESREAD) or unknown: while the position says that there is more,
        there is, and `reserve` finds its end.
        """
        head = (self._until or self._heads)[stream]
        if state.last_delivered >= head.last:
            return 0
        counts = [] if state.lag is None else [state.lag]
        if head.added is not None and state.entries_read is not None:
            counts.append(head.added - state.entries_read)
        return min(counts) if counts and min(counts) > 0 else _ENDLESS

    def _pending_between(self, begin: Offset, end: Offset) -> list[Run]:
        """The batch again, after a restart: from our pending list, held against what the offset says it held."""
        runs: list[Run] = []
        for stream in self._member.streams:
            runs += self._pending_of(stream, begin[stream], end[stream], end.shares.get(stream, Share(0, False)))
        return runs

    def _pending_of(self, stream: str, after: StreamId, last: StreamId, share: Share) -> list[Run]:
        if not after < last:
            return []
        size = self._options["entriesPerPartition"]
        found: list[Run] = []
        try:
            found = pending_runs(self._connection(), self._member, [PendingRange(stream, last, after)], size)
        except GroupMissingError:
            if not share.owned:
                raise
        pending = sum(run.count for run in found)
        if share.owned:
            # The range was all ours: the stream itself has the batch, whatever has become of the pending list.
            if pending == share.count:
                return [replace(run, owned=True) for run in found]
            return [Run(stream, after, last, share.count, owned=True)]
        if pending < share.count and self._options["failOnDataLoss"]:
            raise DataLossError(
                f"stream {stream!r}: {share.count - pending} of {share.count} entries of the batch above {after} up to "
                f"{last} are no longer pending for consumer {self._member.consumer!r} of group {self._member.group!r} "
                "(acknowledged, claimed by another consumer, or XGROUP DELCONSUMER); "
                "set failOnDataLoss=false to go on without them"
            )
        return found
