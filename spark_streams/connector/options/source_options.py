"""Options of the source: of `spark.readStream`, of `spark.read`, and of both."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.pattern import NamesAndPatterns, is_pattern
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.options.access_options import AccessOptions, check_names_of_shards
from spark_streams.connector.options.option import Option
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.table import BATCH_SOURCE, SOURCE
from spark_streams.connector.shards.names import Shard
from spark_streams.connector.wire import address as allowed


@dataclass(frozen=True, kw_only=True)
class ReadOptions(AccessOptions):
    """Options of both kinds of reader.

    Positions are `$` (latest) or an entry ID as text. Either `streams` or `streams_pattern` is None. Times are
    converted into positions.
    """

    SIDE: ClassVar[str] = "source"

    streams: tuple[str, ...] | None
    streams_pattern: str | None
    streams_except: tuple[str, ...]
    starting_offsets: PerStream[str]
    starting_timestamp: PerStream[int | None] | None  # milliseconds since the epoch
    entries_per_partition: int
    min_partitions: int | None
    ordered: bool
    mode: str
    column_name_of_corrupt_record: str
    null_value: tuple[bytes, ...]
    arrow_batches: bool | None

    @property
    def pattern(self) -> str:
        """Pattern of a reader that names no streams."""
        assert self.streams_pattern is not None
        return self.streams_pattern

    def selected(self, streams: Sequence[str]) -> list[str]:
        """Return those of these streams that the pattern matches and streamsExcept does not name."""
        pattern = NamesAndPatterns.divide((self.pattern,), frozenset())
        return self.without_excluded([stream for stream in streams if pattern.selects(stream)])

    def without_excluded(self, streams: Sequence[str]) -> list[str]:
        """Return these streams of the pattern without those that option streamsExcept names or matches, whatever other
        streams there are: strangers may create them."""
        excluded = NamesAndPatterns.divide(self.streams_except, frozenset())
        return [stream for stream in streams if not excluded.selects(stream)]

    @property
    def accepts_loss(self) -> bool:
        """Whether lost entries are counted instead of ending the read."""
        return False

    def checked(self) -> Self:
        if self.streams is None and self.streams_pattern is None:
            raise InvalidOptionError("source option streams is missing (or streamsPattern): set one of them")
        if self.streams is not None:
            self._check_named(self.streams)
            return self._for_named(self.streams)._checked()
        return self._checked()

    def _for_named(self, streams: tuple[str, ...]) -> Self:
        """Return these options, in which the name of a stream that is read is no pattern."""
        bound: dict[str, Any] = {}
        for option in self.TABLE:
            value: object = getattr(self, option.field)
            if isinstance(value, PerStream) and value.named:
                bound[option.field] = replace(value, streams=frozenset(streams))
        return replace(self, **bound)

    def _checked(self) -> Self:
        if "columnNameOfCorruptRecord" in self.explicit and self.mode != "PERMISSIVE":
            raise InvalidOptionError(f"columnNameOfCorruptRecord has no meaning in mode={self.mode}: remove it")
        if self.starting_timestamp is None:
            return self
        return replace(self, starting_offsets=_offsets_of(self.starting_timestamp, self.starting_offsets.otherwise))

    def in_shards(self, shards: Mapping[str, Sequence[str]]) -> Self:
        """Return these options with the names of shards in place of their streams. shards: by stream."""
        names = [name for stream in self.streams or () for name in shards.get(stream, (stream,))]
        return replace(
            self, streams=tuple(dict.fromkeys(names)), starting_offsets=self.starting_offsets.for_shards(shards)
        )

    def _check_named(self, names: tuple[str, ...]) -> None:
        """Raise InvalidOptionError if an option by stream names a stream that is not read."""
        for option in self.TABLE:
            option_value: object = getattr(self, option.field)
            for stream in option_value.unmatched(names) if isinstance(option_value, PerStream) else ():
                shard = Shard.parse(stream)
                if shard is not None and shard.stream in names:
                    continue
                near = difflib.get_close_matches(stream.lower(), {name.lower(): name for name in names}, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                cause = f"stream {stream!r}, which is not"
                cause = cause if not is_pattern(stream) else f"{stream!r}, which matches none"
                raise InvalidOptionError(f"{option.name} names {cause} among streams{hint}")


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ReadOptions):
    """Options of `spark.readStream`. Durations are in milliseconds."""

    TABLE: ClassVar[tuple[Option, ...]] = SOURCE

    on_new_checkpoint: str
    archive_path: str | None
    create_streams: bool
    shards: int | None
    group: str
    consumer: str
    max_entries_per_trigger: PerStream[int | None]
    max_bytes_per_trigger: int | None
    target_batch_time: int | None
    min_entries_per_trigger: int | None
    max_trigger_delay: int
    on_commit: str
    no_ack: bool
    fail_on_data_loss: bool
    claim_idle: int | None
    max_deliveries: int | None
    dead_letter_stream: str | None
    retry_delay: tuple[int, ...] | None

    @property
    def is_start_given(self) -> bool:
        """Whether the user has set where a new group starts, also if to the default."""
        return not self.explicit.isdisjoint(("startingOffsets", "startingTimestamp"))

    @property
    def restarts_at(self) -> PerStream[str] | None:
        """Where a query without a checkpoint begins in existing groups, too. None: where these stand."""
        return self.starting_offsets if self.on_new_checkpoint == "restart" else None

    @property
    def accepts_loss(self) -> bool:
        return not self.fail_on_data_loss

    @property
    def has_pending_list(self) -> bool:
        """Whether entries of a batch are pending until it is committed."""
        return not self.no_ack

    def checked(self) -> Self:
        checked = super().checked()
        checked._check_limits()
        self._check_dead_letters()
        if self.on_new_checkpoint != "resume" and not self.is_start_given:
            raise InvalidOptionError(
                f"onNewCheckpoint={self.on_new_checkpoint} needs option startingOffsets or startingTimestamp: set "
                "where the query begins"
            )
        if self.shards is not None:
            check_names_of_shards("streams", self.streams or ())
        if self.archive_path is not None:
            allowed.check_file("archivePath", self.archive_path)
            starts = checked.starting_offsets
            if {starts.otherwise, *starts.named.values()} == {"$"}:
                raise InvalidOptionError(
                    "archivePath has nothing to read with startingOffsets=latest (the default): set startingOffsets to "
                    "earliest or an entry ID, or set startingTimestamp"
                )
        return checked

    def in_shards(self, shards: Mapping[str, Sequence[str]]) -> Self:
        return replace(
            super().in_shards(shards),
            max_entries_per_trigger=self.max_entries_per_trigger.for_shards(shards, _divided),
        )

    def _check_limits(self) -> None:
        max_entries, min_entries = self.max_entries_per_trigger, self.min_entries_per_trigger
        if min_entries is not None:
            limits = [max_entries.otherwise]
            if max_entries.named:
                limits = [max_entries.value_for(stream) for stream in self.streams or ()]
            most = sum(limit for limit in limits if limit is not None)
            if limits and None not in limits and min_entries > most:
                raise InvalidOptionError(f"minEntriesPerTrigger={min_entries} is more than maxEntriesPerTrigger={most}")

    def _check_dead_letters(self) -> None:
        to = self.dead_letter_stream
        if to is None and self.mode == "DEADLETTER":
            raise InvalidOptionError("mode=DEADLETTER needs option deadLetterStream: set the stream for bad entries")
        if to is not None and self.mode != "DEADLETTER" and self.max_deliveries is None:
            raise InvalidOptionError(
                "option deadLetterStream has nothing to receive: set mode=DEADLETTER, maxDeliveries or both"
            )
        if to is not None and self.streams is not None and to in self.streams:
            raise InvalidOptionError(f"deadLetterStream={to!r} is among the streams to read: set another stream")


@dataclass(frozen=True, kw_only=True)
class BatchSourceOptions(ReadOptions):
    """Options of `spark.read`."""

    TABLE: ClassVar[tuple[Option, ...]] = BATCH_SOURCE

    ending_offsets: PerStream[str]
    ending_timestamp: PerStream[int | None] | None  # milliseconds since the epoch
    infer_schema: bool
    push_filters: bool
    archive_path: str | None

    def checked(self) -> Self:
        checked = super().checked()
        if checked.archive_path is not None:
            allowed.check_file("archivePath", checked.archive_path)
            if checked.ordered:
                raise InvalidOptionError(
                    "options ordered and archivePath contradict each other in spark.read: the files of an archive are "
                    "read in parallel; remove one of them"
                )
        if checked.ending_timestamp is None:
            return checked
        return replace(checked, ending_offsets=_offsets_of(checked.ending_timestamp, checked.ending_offsets.otherwise))

    def in_shards(self, shards: Mapping[str, Sequence[str]]) -> Self:
        return replace(super().in_shards(shards), ending_offsets=self.ending_offsets.for_shards(shards))


def _divided(maximum: int | None, count: int) -> int | None:
    return None if maximum is None else -(-maximum // count)


def _offsets_of(times: PerStream[int | None], otherwise: str) -> PerStream[str]:
    """Convert times to positions, the last ID before each millisecond. otherwise: for streams without a time."""
    before = functools.partial(_last_before, otherwise=otherwise)
    return times.map(before, before(times.otherwise))


def _last_before(milliseconds: int | None, otherwise: str) -> str:
    if milliseconds is None:
        return otherwise
    first = StreamId(milliseconds, 0)
    return str(first.previous() if first > MIN_ID else MIN_ID)
