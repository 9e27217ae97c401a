"""One streaming query as Spark 4.3 runs it: an offset log, a commit log, and who is asked when.

Measured in docs/internals/facts.md, S1–S8.

    start     the unfinished batch, if the offset log is ahead of the commit log: partitions(start, end) at once (S5)
    trigger   latestOffset(start) → offsets/N → commit(end of N-1) → partitions, tasks, sink → commits/N (S3, S4)

Between any two of these, and between any two sends of the product, the process may be killed.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_streams.errors import RStreamError
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.limits import LIMITS
from spark_streams.source.rows.columns import Columns
from spark_streams.source.stream_reader import StreamReader
from spark_streams.spark.read_limits import ReadAllAvailable, ReadLimit
from tools.chaos.history import id_key
from tools.simulation.injected import PATIENCE, TERMS
from tools.simulation.model import GIVEN_UP, Entry
from tools.simulation.once import OUT
from tools.simulation.tasks import SCHEMA, Tasks
from tools.simulation.ticks import Killed
from tools.simulation.world import CONSUMER, GROUP, World

Json = dict[str, Any]
# A few entries cross every boundary, and new streams are looked for at each trigger.
SMALL = replace(
    LIMITS, first_page=2, pending_page=7, reserve_step=3, reserve_round=6, pattern_interval=0.0, idle_check=0.0
)


class Query:
    """offsets: the offset log; committed: the last batch of the commit log; epoch: how many checkpoints there were
    before this one; options: of the next start; lenient: after an error it is run with failOnDataLoss=false, until it
    is idle (strict_again) or is changed; takes_a_batch: a trigger of it has begun, and no offset is logged yet."""

    def __init__(self, world: World, options: dict[str, str]) -> None:
        self.world = world
        self.options = options
        self.offsets: list[Json] = []
        self.committed = -1
        self.newest: tuple[list[Json], int] | None = None  # both logs as they were before they were set back
        self.epoch = 0
        self.lenient = self.strict_again = False
        self.was_no_ack = False  # an earlier run was
        self.had_a_list = False  # an earlier run was without noAck
        self.was_limited = False  # an earlier run had maxDeliveries: batches may have been cut
        self.given_up: list[Entry] = []  # acknowledged before they are read: a run that ends gives them up
        self.runs = 0
        self.until: int | None = None  # an AvailableNow run takes entries up to this number
        self.listed = set[str]()  # streams that it was told to read once
        self.tasks = Tasks(world, self)
        self.takes_a_batch = False
        self._reader: StreamReader | None = None
        self._limit: ReadLimit = ReadAllAvailable()
        self.always_ordered = options.get("ordered") == "true"
        self.gives_up = False  # whether the last batch was made with at-most-once

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Spark's name of the query, which its checkpoint keeps."""
        return f"q{self.epoch}"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._reader is not None

    @property
    def is_lenient(self) -> bool:
        """Whether it goes on where entries are lost."""
        return self.lenient or self.options.get("failOnDataLoss") == "false"

    @property
    def mode(self) -> str:
        """How it reads, for the kinds of failures."""
        options = self.options
        found = [name for name in ("noAck", "claimIdle", "maxDeliveries") if name in options]
        found += ["at-most-once"] if options.get("delivery") == "at-most-once" else []
        found += ["once noAck"] if self.was_no_ack and "noAck" not in options else []
        return f"{'lenient' if self.is_lenient else 'strict'} {' '.join(found) or 'plain'}"

    def reads(self) -> list[str]:
        """The streams that it has been told to read, those that exist by its pattern."""
        if "streamsPattern" in self.options:
            return [name for name in self.world.names() if name in self.world.model.streams]
        return self.options["streams"].split(",")

    def logged(self, stream: str) -> str:
        """Where its offset log stands on a stream."""
        return str(self.offsets[-1]["streams"].get(stream, "0-0")) if self.offsets else "0-0"

    def begin_of(self, number: int) -> Mapping[str, str]:
        """Where a batch of its offset log begins, per stream."""
        found: Mapping[str, str] = self.offsets[number - 1]["streams"] if 0 < number <= len(self.offsets) else {}
        return found

    def lost(self, stream: str) -> int:
        """How many entries of a stream its checkpoint counts as lost."""
        return int(self.offsets[-1].get("losses", {}).get(stream, 0)) if self.offsets else 0

    # -- runs ----------------------------------------------------------------------------------------------------

    def advance(self, available_now: bool = False) -> str:
        """One batch: `batch`, `idle` where there was nothing, `killed`, or `error` where the run has ended with one."""
        world = self.world
        world.pauses = 0
        for name in self.reads():
            world.model.stream(name).was_lenient |= self.is_lenient
        try:
            if self._reader is None:
                self._start(available_now)
            if self.committed == len(self.offsets) - 1 and not self._construct():
                return "idle"
            self._run()
        except Killed:
            world.tell("   killed")
            self.die()
            return "killed"
        except RStreamError as error:
            world.tell(f"   {error}")
            self.die()
            world.operator.told(error)
            return "error"
        except Exception as error:  # noqa: BLE001 - anything else is a defect of the product
            self.die()
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"crash | {type(error).__name__} in {where.filename.rpartition('/')[2]} {where.name}"
            world.fail(kind, traceback.format_exc())
            return "error"
        else:
            return "batch"

    def die(self) -> None:
        """Its process is killed."""
        if self._reader is None:
            return
        self._reader = None
        self.tasks.die()
        self.world.bury_process()
        self.world.model.excuse(self.given_up, GIVEN_UP)
        self.given_up.clear()
        self.world.births.look()

    def _start(self, available_now: bool) -> None:
        given = {"url": self.world.server.url, "group": GROUP, "consumer": CONSUMER, **self.options}
        if self.lenient:
            given["failOnDataLoss"] = "false"
        self.runs += 1
        self.world.model.begun = True
        self.was_limited |= "maxDeliveries" in self.options
        self.was_no_ack |= self.options.get("noAck") == "true"
        self.had_a_list |= self.options.get("noAck") != "true"
        self.world.tell(f"   start: {given}{' AvailableNow' if available_now else ''}")
        checked = SourceOptions.parse(given).with_patience(PATIENCE)
        columns = Columns(SCHEMA, True, checked.mode, checked.column_name_of_corrupt_record)
        # With noAck the ends of batches are estimates in every other run.
        read_ids = 0 if self.world.setup.seed % 2 else SMALL.read_ids
        limits = replace(SMALL, prefetch_entries=self.world.setup.ahead, read_ids=read_ids, lease=TERMS)
        self._reader = StreamReader(checked, columns, limits=limits)
        self._limit = self._reader.getDefaultReadLimit()
        self.until = len(self.world.model.entries) if available_now else None
        if available_now:
            self._reader.prepareForTriggerAvailableNow()
        if self.runs % 2:  # again in later runs (S2)
            self._reader.initialOffset()
            self.world.births.look(begun=True)
        if self.options.get("delivery") == "at-most-once" and self.committed < len(self.offsets) - 1:
            self._excuse_the_interrupted()
        self.world.tick()

    def _excuse_the_interrupted(self) -> None:
        """The batch that an earlier run left unfinished is given up by at-most-once. If the checkpoint was set back,
        rows that another batch of its number has written stay, and their entries are read again (a row under Limits).
        """
        model, some = self.world.model, list[Entry]()
        for name, held in self.offsets[-1]["batch"].items():
            begin, end = id_key(held.get("after") or "0-0"), id_key(self.logged(name))
            some += [one for one in model.of(name) if begin < one.key <= end]
        for name in self.offsets[-1]["claimed"]:
            some += model.of(name, self.world.see(name).ours())
        model.excuse(some, GIVEN_UP)
        written = [model.entries[row.value[1]] for row in self.world.sink.rows()]
        for one in written if "checkpoint set back" in model.stream(OUT).ever else []:
            if one.key > id_key(self.logged(one.stream)):
                one.again.add("its batch was given up after a set-back")

    def _construct(self) -> bool:
        """Ask for the next batch and log it; whether there is one."""
        assert self._reader is not None
        if self.offsets:
            start = self.offsets[-1]
        else:
            start = self._reader.initialOffset()
            self.world.births.look(begun=True)
        self.world.tick()
        self.world.tell(f"   latestOffset({_shown(start)})")
        self.takes_a_batch = True
        try:
            end = _through_json(self._reader.latestOffset(start, self._limit))
        finally:
            self.takes_a_batch = False
        self._reader.reportLatestOffset()
        self.world.births.look()
        self.world.tick()
        if end == start:
            return False
        self.world.tell(f"   offsets/{len(self.offsets)}: {_shown(end)}")
        self.offsets.append(end)
        self.gives_up = self.options.get("delivery") == "at-most-once"
        self._tell_what_is_known()
        self.world.tick()
        if len(self.offsets) > 1:
            self._reader.commit(self.offsets[-2])
        return True

    def _run(self) -> None:
        """Run the last batch of the offset log."""
        assert self._reader is not None
        number = len(self.offsets) - 1
        if number:
            start = self.offsets[-2]
        else:
            start = self._reader.initialOffset()
            self.world.births.look(begun=True)
        self.world.tick()
        end = self.offsets[-1]
        partitions = list(self._reader.partitions(start, end))
        self.world.tick()
        self.tasks.run(self._reader, number, partitions, (_shown(start), _shown(end)))
        self.world.tick()
        self.committed = number
        self.world.tell(f"   commits/{number}")
        self.tasks.committed(number)
        self.given_up.clear()
        self.world.tick()

    # -- what its operator does ----------------------------------------------------------------------------------

    def set_back(self, offsets: int, committed: int) -> None:
        """The logs have only so many files left."""
        self.die()
        self.offsets = self.offsets[:offsets]
        self._tell_what_is_known()
        self.world.model.forget([name for name, one in self.world.model.streams.items() if not one.known])
        self.committed = min(committed, offsets - 1)
        self.tasks.forget_after(self.committed)
        for name, stream in self.world.model.streams.items():
            stream.remembered = min(stream.remembered, self.lost(name))

    def change(self, options: dict[str, str]) -> None:
        """Other options, from its next start on; which group new streams begin in stays as it was. A batch that is
        acknowledged and was not read (at-most-once) is missed by a run that reads it again."""
        was, now = (one.get("delivery") == "at-most-once" for one in (self.options, options))
        if was and not now and self.committed < len(self.offsets) - 1:
            for name in self.offsets[-1]["streams"]:
                self.world.model.stream(name).causes.add(GIVEN_UP)
        self.options = {**options, "startingOffsets": self.options["startingOffsets"]}
        self.lenient = False
        self.listed |= set(self.reads())
        self.always_ordered &= options.get("ordered") == "true"

    def read_all(self) -> None:
        """It is told to read all streams that it ever was."""
        if "streams" in self.options:
            self.options = {**self.options, "streams": ",".join(sorted(self.listed | set(self.reads())))}

    def begin_anew(self) -> None:
        """A new checkpoint."""
        self.die()
        self.offsets, self.committed, self.newest = [], -1, None
        self._tell_what_is_known()
        self.epoch += 1
        for stream in self.world.model.streams.values():
            stream.remembered = 0

    def put_back(self) -> None:
        """The newest checkpoint instead of an older copy."""
        assert self.newest is not None
        self.die()
        self.offsets, self.committed = self.newest
        self._tell_what_is_known()
        self.newest = None

    def _tell_what_is_known(self) -> None:
        """What is removed from streams that the last offset does not name may not be noticed (a row under Limits)."""
        named = self.offsets[-1]["streams"] if self.offsets else ()
        for name, stream in self.world.model.streams.items():
            if stream.known and name not in {*named, *self.reads()}:
                self.world.births.dropped(name)
            stream.known = name in named


def _through_json(offset: Json) -> Json:
    found: Json = json.loads(json.dumps(offset))
    return found


def _shown(offset: Json) -> str:
    return json.dumps({k: v for k, v in offset.items() if k not in ("version", "group", "consumer")})
