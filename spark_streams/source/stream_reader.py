"""The streaming reader that Spark drives: on the driver it reserves, plans and settles; in a task it reads.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `latestOffset(start)` proves that
everything up to `start` is in the commit log (FACTS S4), so it settles that first, then reserves the next batch: first
what a crash left pending above `start`, then new entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_streams.errors import StreamStateError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.columns import Columns
from spark_streams.source.group import (
    GroupState,
    Membership,
    StreamState,
    create_groups,
    first_positions,
    look,
    stream_states,
)
from spark_streams.source.offsets import Offset
from spark_streams.source.pending import pending_runs, settle
from spark_streams.source.plan import Run, share, tasks
from spark_streams.source.read import read_run
from spark_streams.source.reserve import STEP, Wanted, reserve
from spark_streams.wire.connection import Connection

_ENDLESS = 1 << 62  # a backlog that the server cannot count


class RunPartition(InputPartition):
    """One task's share of a micro-batch."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.run = run


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """format("rstream") for readStream. One object lives on the driver for the whole run of a query (FACTS S1)."""

    def __init__(self, options: Options, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._member = Membership(options["streams"], options["group"], options["consumer"])
        self._server: Connection | None = None
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
        server = self._connection()
        create_groups(server, self._member, self._options["startingOffsets"])
        return Offset(first_positions(server, self._member)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxEntriesPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = stream_states(self._connection(), self._member.streams)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle up to `start`, reserve the next batch, and return its end; `start` itself where there is nothing."""
        begin = Offset.from_json(start)
        server = self._connection()
        self._settle(begin)
        self._heads, states = look(server, self._member, self._member.streams)
        self._check_not_reset(begin, states)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        runs = self._leftovers(begin, states, most) or self._new_entries(states, most)
        if not runs:
            return start
        end = begin.moved({run.stream: run.last for run in runs})
        self._reserved = (begin, end, runs)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        return Offset({stream: state.last for stream, state in self._heads.items()}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch as tasks. After a restart the pending list tells what the batch held (FACTS S5)."""
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        if self._reserved is not None and self._reserved[:2] == (begin, stop):
            runs = self._reserved[2]
        else:
            runs = self._pending_between(begin, stop)
        return [RunPartition(run) for run in tasks(runs, self._options["entriesPerPartition"])]

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(Offset.from_json(end))

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RunPartition)
        with Connection(self._options.address) as server:
            yield from read_run(server, self._member, partition.run, self._columns, self._options["failOnDataLoss"])

    # -- parts of a trigger ------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        if self._server is None:
            self._server = Connection(self._options.address)
        return self._server

    def _settle(self, up_to: Offset) -> None:
        """Acknowledge our entries up to `up_to`, on the streams where that has moved."""
        for stream in self._member.streams:
            if self._settled.get(stream) != up_to[stream]:
                settle(self._connection(), self._member, stream, up_to[stream])
                self._settled[stream] = up_to[stream]

    def _check_not_reset(self, begin: Offset, states: Mapping[str, GroupState]) -> None:
        for stream, state in states.items():
            if state.last_delivered < begin[stream]:
                raise StreamStateError(
                    f"group {self._member.group!r} of stream {stream!r} stands at {state.last_delivered}, below the "
                    f"checkpoint's {begin[stream]}: it was made anew or set back; set it to the checkpoint's position "
                    "(XGROUP SETID), or start with a new checkpoint"
                )

    def _leftovers(self, begin: Offset, states: Mapping[str, GroupState], most: int | None) -> list[Run]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {stream: state.ours for stream, state in states.items() if state.ours}
        allowed = backlog if most is None else share(most, backlog)
        size = self._options["entriesPerPartition"]
        return [
            run
            for stream, entries in allowed.items()
            for run in pending_runs(self._connection(), self._member, stream, begin[stream], MAX_ID, entries, size)
        ]

    def _new_entries(self, states: Mapping[str, GroupState], most: int | None) -> list[Run]:
        backlog = {stream: self._backlog(stream, state) for stream, state in states.items()}
        backlog = {stream: entries for stream, entries in backlog.items() if entries > 0}
        allowed = backlog if most is None else share(most, backlog)
        ends = self._until or self._heads
        wanted = {s: Wanted(entries, ends[s].last) for s, entries in allowed.items() if entries > 0}
        step = min(STEP, self._options["entriesPerPartition"])
        return reserve(self._connection(), self._member, wanted, states, step)

    def _backlog(self, stream: str, state: GroupState) -> int:
        """How many entries the group has yet to deliver, up to where this trigger or this run may go."""
        head = (self._until or self._heads)[stream]
        if state.last_delivered >= head.last:
            return 0
        backlog = _ENDLESS if state.lag is None else state.lag
        if head.added is not None and state.entries_read is not None:
            backlog = min(backlog, head.added - state.entries_read)
        return backlog

    def _pending_between(self, begin: Offset, end: Offset) -> list[Run]:
        size = self._options["entriesPerPartition"]
        return [
            run
            for stream in self._member.streams
            for run in pending_runs(self._connection(), self._member, stream, begin[stream], end[stream], None, size)
        ]
