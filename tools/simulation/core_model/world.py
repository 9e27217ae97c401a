"""A simulated Spark, and everything else that happens to a stream, at random.

The world keeps its own truth (`Entry`): what tasks have returned, what Spark has committed, what other clients have
received, and which entries an event has put in danger. It never reads the source's bookkeeping.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tools.simulation.actor import Killed
from tools.simulation.core_model.clients import (
    BEFORE_FIRST,
    ONLINE,
    Checkpoint,
    Clients,
    Entry,
    InProcess,
    Scenario,
)
from tools.simulation.core_model.facts import ZERO, Id, Mark, Offset, parse, text
from tools.simulation.core_model.source import RefusedError, Source, StopError


@dataclass(frozen=True)
class Model:
    """The model as a subject, with the names of its keys. The product has the same methods (product.py)."""

    def streams_of(self, stream: str) -> list[str]:
        """Return the stream, and the one of its dead letters."""
        return [stream, f"dead:{stream}"]

    def all_of(self, stream: str) -> list[str]:
        """Return these and the strings beside them that a restored server has in an older state."""
        return [*self.streams_of(stream), self.mark(stream), self.record(stream)]

    def mark(self, stream: str) -> str:
        """Return the key of the commit mark."""
        return f"mark:{stream}"

    def record(self, stream: str) -> str:
        """Return the key of the record of batches that kill the query."""
        return f"record:{stream}"

    def sought(self, position: str, before: str | None) -> str:
        """Return the mark of an operator who has set the group to a position. before: the mark by then."""
        return f"{position} {Mark.parse(before).number if before else 0}.seek"

    def start(self, world: Any) -> Source:
        """Return the source of a new process of the driver."""
        powers = world.scenario.powers
        return Source(
            world.server, world.key, world.hook, world.report, strict=not world.lenient_once,
            claims=lambda name: "claims" in powers and name in world.dead_consumers,
            max_deaths=2 if "poison" in powers else None,
            prefetch="claims" not in powers and not world.scenario.in_step,
        )  # fmt: skip

    def bury(self) -> None:
        """The process is dead."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which one history runs."""
        return contextlib.nullcontext()


MODEL = Model()


# -- Spark, and the judge ----------------------------------------------------------------------------------------------


TRIGGERS = 14


class World(Clients):
    """One history. Failures are appended to `wrong`."""

    def __init__(
        self,
        server: InProcess,
        seed: int,
        scenario: Scenario,
        subject: Model | Any = MODEL,
        trace: list[Any] | None = None,
    ) -> None:
        """subject: what is tested; trace: gets what two subjects must have in common, step by step."""
        super().__init__(server, subject, seed, scenario)
        self.subject, self.trace = subject, [] if trace is None else trace
        self.earlier: list[Checkpoint] = []  # checkpoints that were replaced by a new one
        self.contents: dict[str, list[tuple[list[Id], int]]] = {}  # token: what each execution has read, and when
        self.notices: list[tuple[int, str, int]] = []
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.lenient_once = not scenario.strict
        self.source: Any = None

    # -- hooks of the source -----------------------------------------------------------------------------------------

    def hook(self, when: str, commands: list) -> None:
        """Called before and after each command of the source."""
        self.now += 1
        if when == "before":
            for command in commands:
                if command[0] == "XACK":
                    self._check_acknowledged(list(map(parse, command[3:])), commands)
        elif any(command[0] == "XLEN" or command[:2] == ["XINFO", "STREAM"] for command in commands):
            group = self._group_info()
            delivered = parse(group["last-delivered-id"]) if group else ZERO
            is_counted = bool(group) and (group["entries-read"] is not None or group["consumers"] < 2)
            for entry_id, entry in self.entries.items():
                is_seen = entry.removed and is_counted and entry_id > delivered
                entry.visible |= is_seen and not entry.vanished and not entry.forgotten
        if self.quiet or self.scenario.in_step:
            return
        if self.random.random() < 0.012:
            self.counts["kills"] += 1
            raise Killed
        amid = [p for p in self.scenario.powers if p in ONLINE or self.scenario.amid]
        if amid and self.random.random() < 0.06:
            self.act(self.random.choice(amid))

    def _check_acknowledged(self, ids: list[Id], commands: list) -> None:
        is_dead_letter = any(c[0] == "XADD" for c in commands)
        for entry_id in ids:
            entry = self.entries[entry_id]
            if is_dead_letter:
                entry.dead = True
            elif "seek" in self.events and entry.reads:
                continue  # of the batch before the group was set back: it is delivered again
            elif not entry.is_served() and not self._is_noticed(entry):
                self.fail("acknowledged early", entry_id, "handed over" if entry.needed else entry.cause)

    def report(self, outcome: str, count: int) -> None:
        """A lenient query, or the exception of strict ones."""
        self.now += 1
        self.notices.append((self.now, outcome, count))
        if outcome != "SET_TO_CHECKPOINT":
            self.counts["reports"] += 1

    # -- Spark -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """One history: processes that are killed, then a drain without faults."""
        with self.subject.running():
            self.act("produce")
            triggers = TRIGGERS
            while triggers > 0:
                triggers -= self._process(triggers)
            self.quiet = True
            self._drain()
            self._check_end()

    def _process(self, triggers: int) -> int:
        """Run one process of the driver. Return the number of triggers."""
        done = 0
        try:
            self.source = self.subject.start(self)
            start = self._recover()
            while done < triggers and not self._is_strict_again():
                done += 1
                for _ in range(self.random.randrange(3)):
                    self.act(self.random.choice(("produce", *self.scenario.powers)))
                start = self._trigger(start)
        except Killed:
            pass
        except StopError as stop:
            self._stopped(*stop.args)
        except RefusedError:
            self.counts["errors"] += 1
        self.subject.bury()
        if not self.quiet and "checkpoint" in self.scenario.powers and self.random.random() < 0.3:
            self._older_checkpoint()
        if not self.quiet and "renew" in self.scenario.powers and self.random.random() < 0.3:
            self._new_checkpoint()
        if not self.quiet and "seek" in self.scenario.powers and self.random.random() < 0.3:
            self._seek()
        return max(done, 1)

    def _is_strict_again(self) -> bool:
        """Whether the operator starts the query again as a strict one: a lenient run has brought it over a finding."""
        return self.source.strict != (not self.lenient_once)

    def _recover(self) -> Offset:
        """What Spark does at a start: run the last logged batch again if it is not committed."""
        log = self.log
        start = log.offsets[log.committed - 1] if log.committed else self.source.initial_offset()
        if len(log.offsets) > log.committed:
            start = self._execute(start, log.offsets[-1])
        return start

    def _trigger(self, start: Offset) -> Offset:
        begun = self.now
        end = self.source.latest_offset(start)
        self.trace.append(self.source.shown(end, end is not start))
        if end is start:
            self.trace.append(self._on_server())
            self._settled()
            self.recent = {event: at for event, at in self.recent.items() if at > begun}
            return start
        self._spark_may_die()
        self.log.offsets.append(end)
        for entry_id in self._pending("us"):
            self.entries[entry_id].visible |= entry_id <= end.position
        self._spark_may_die()
        return self._execute(start, end)

    def _execute(self, start: Offset, end: Offset) -> Offset:
        batch = self.source.plan(start, end)
        self._some_background()
        for _ in range(1 + (self.random.random() < 0.1)):  # a task may run twice
            ids = self.source.read(end, batch)
            self._check_same(end, ids)
            self.trace.append(("read", ids))
            if self.poison in ids:
                raise Killed
        self._some_background()
        self._spark_may_die()
        self.now += 1
        self.log.committed += 1
        for entry_id in ids:
            self.entries[entry_id].reads.append((end.token, self.now))
        self.counts["batches"] += 1
        self._spark_may_die()
        self.source.commit(end)
        return end

    def _some_background(self) -> None:
        if not self.scenario.in_step:
            for _ in range(self.random.randrange(3)):
                self.source.background_step()
        elif self.random.random() < 0.5:
            self.source.finish_background()

    def _on_server(self) -> tuple[Any, ...]:
        """What must be alike on the server: position of the group, and what is pending for the query."""
        return "server", self._delivered(), tuple(self._pending("us"))

    def _settled(self) -> None:
        """A lenient run has brought a strict query over the finding: it is started again as a strict one. At the end it
        stays lenient, because a loss that is found at each start would never end."""
        if not self.quiet:
            self.lenient_once = not self.scenario.strict

    def _spark_may_die(self) -> None:
        if not self.quiet and self.random.random() < (0.1 if self.scenario.in_step else 0.04):
            self.counts["kills"] += 1
            raise Killed

    def _check_same(self, end: Offset, ids: list[Id]) -> None:
        """A replay has the same entries, or there was a notice, or the batch was set aside."""
        before = self.contents.setdefault(end.token, [])
        is_changed = before and ids and before[-1][0] and before[-1][0] != ids
        if is_changed and not any(at > before[-1][1] for at, *_ in self.notices):
            self.fail("changed replay", ids)
        before.append((ids, self.now))

    def _stopped(self, outcome: str, count: int) -> None:
        """A strict query has stopped. The operator starts it once with failOnDataLoss=false."""
        self.trace.append(("stops", outcome))
        self.now += 1
        self.notices.append((self.now, outcome, count))
        self.counts[f"stop {outcome}"] += 1
        self.counts["stops"] += 1
        if not self.recent.keys() & CAUSES[outcome]:
            kind = "stopped again" if self.events.keys() & CAUSES[outcome] else "false alarm"
            self.fail(kind, count, outcome + (", counter forgotten" if "forget" in self.events else ""))
        self.lenient_once = True

    def _older_checkpoint(self) -> None:
        """The checkpoint is replaced by an older copy, or by an earlier checkpoint. Batches are undone, and must be
        read again or noticed."""
        self.happened("checkpoint")
        if self.earlier and self.random.random() < 0.5:
            number = self.random.randrange(len(self.earlier))
            self.log, self.earlier = self.earlier[number], self.earlier[:number]
            self.counts["returns"] += 1
        else:
            offsets, committed = self.log.offsets, self.log.committed
            logged = self.random.randint(max(1, len(offsets) - 3), len(offsets)) if offsets else 0
            committed = min(committed, self.random.choice((logged, max(logged - 1, 0))))
            self.log = Checkpoint(offsets[: min(logged, committed + 1)], committed, self.log.inherited)
        batches = self.log.batches()
        for entry_id, entry in self.entries.items():
            entry.visible &= entry_id <= self.log.end()
            entry.forgotten = False
            kept = [read for read in entry.reads if read[0] in batches]
            if len(kept) < len(entry.reads):
                entry.undone += [read for read in entry.reads if read not in kept]
                entry.reads, entry.hurt, entry.cause = kept, self.now, "checkpoint"

    def _new_checkpoint(self) -> None:
        """The query starts with a new, empty checkpoint, and its group as it is. What is pending is read again, also if
        the earlier checkpoint has read it. Entries that were removed before, and are not pending, are forgotten. It
        cannot know that the earlier checkpoint was an older copy: what newer ones had read stays read."""
        self.events["renew"] += 1
        self.counts["renewals"] += 1
        if self.log.offsets:
            self.earlier.append(self.log)
        self.log = Checkpoint(inherited=frozenset(self.contents))
        pending = set(self._pending("us"))
        for entry_id, entry in self.entries.items():
            if not entry.is_served():
                entry.reads, entry.undone = entry.reads + entry.undone, []
            if entry_id in pending:
                entry.reread = len(entry.reads)
                continue
            if entry.removed:
                entry.visible, entry.forgotten = False, True
            if entry.cause != "nothing":
                entry.cause = entry.cause.removesuffix(BEFORE_FIRST) + BEFORE_FIRST

    def _drain(self) -> None:
        """No faults any more: dead consumers stay, released and handed-over entries are read."""
        for name in sorted(self.dead_consumers):
            self._make_idle(name)
        for _ in range(20):
            idle = 0
            try:
                self.source = self.subject.start(self)
                start = self._recover()
                for _ in range(200):
                    if self._is_strict_again():
                        break
                    end = self._trigger(start)
                    idle = idle + 1 if end is start else 0
                    if idle == 2:
                        return
                    start = end
            except StopError as stop:
                self._stopped(*stop.args)
            except (Killed, RefusedError):  # poison, or a group that was missing
                pass
            self.subject.bury()
        self.fail("no end of the drain", None)

    # -- the checks at the end ---------------------------------------------------------------------------------------

    def _check_end(self) -> None:
        rows = self.server.run([["XPENDING", self.key, "g", "-", "+", 10000]])[0]
        for row in rows if isinstance(rows, list) else []:
            if row[1] in ("us", "") or ("claims" in self.scenario.powers and row[1] in self.dead_consumers):
                self.fail("pending after drain", row[0])
        for entry_id, entry in self.entries.items():
            if not entry.is_served() and not self._is_noticed(entry):
                kind = "silent loss" if entry.visible or not entry.removed else "unseen loss"
                handed = "handed over, " if entry.needed else ""
                self.fail(kind, entry_id, handed + entry.cause)
            if len(entry.reads) - entry.reread > 1 and not self.events.keys() & TWICE and not entry.needed:
                self.fail("read twice", entry_id)

    def _is_noticed(self, entry: Entry) -> bool:
        return bool(entry.hurt) and any(at > entry.hurt for at, *_ in self.notices)

    def fail(self, kind: str, what: Any, cause: str = "") -> None:
        """Remember a failure, with its cause, or with all events if it has none of its own."""
        shown = text(what) if isinstance(what, tuple) else what
        is_renewed = ", new checkpoint" if self.events["renew"] else ""
        is_shared = ", shared" if self.group_was_shared or self._group_info().get("consumers", 0) > 1 else ""
        self.wrong.append(f"{kind} ({shown}) {cause or '+'.join(sorted(self.events))}{is_renewed}{is_shared}")


CAUSES: dict[str, set[str]] = {  # an outcome is a false alarm without one of these events
    "ENTRIES_LOST": {"trim", "xdel", "take", "ack_ours", "xnack_ours", "restore", "checkpoint", "destroy",
                     "delconsumer", "setid_back", "setid_forward", "delete"},
    "GROUP_ABOVE": {"setid_forward", "destroy", "delconsumer", "ack_ours", "restore", "checkpoint"},
    "GROUP_BELOW": {"setid_back", "destroy", "restore", "delete"},
    "GROUP_MISSING": {"destroy", "delete", "restore"},
    "STREAM_MISSING": {"delete", "restore"},
    "STREAM_REPLACED": {"delete", "restore"},
    "CHECKPOINT_OLDER": {"checkpoint"},
    "SERVER_RESTORED": {"restore", "delete", "destroy"},
}  # fmt: skip
TWICE = {  # events after which entries may be read twice
    "setid_back", "destroy", "restore", "checkpoint", "xnack_ours", "lose_mark", "lose_record", "delconsumer", "delete",
    "setid_forward", "take", "seek",
}  # fmt: skip
