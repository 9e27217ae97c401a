"""A simulated Spark, and everything else that happens to a stream, at random.

The world keeps its own truth (`Entry`): what tasks have returned, what Spark has committed, what other clients have
received, and which entries an event has put in danger. It never reads the source's bookkeeping.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tools.simulation.core_model.facts import ZERO, Id, Offset, parse, text
from tools.simulation.core_model.source import Source, StopError

BEFORE_FIRST = " before the first batch"  # of the checkpoint, that is: it cannot know of it


class KilledError(Exception):
    """The process of the driver is killed."""


class EngineServer:
    """The bundled engine in this process, with a clock that moves one millisecond per command."""

    def __init__(self) -> None:
        import hiredis

        from spark_streams.engine.launch.assembly import new_engine

        self._now = 1_000_000
        self._engine = new_engine(lambda: self._now)
        self._client = self._engine.connect("model", "model")
        self._readers = {raw: hiredis.Reader(**({} if raw else {"encoding": "utf-8"})) for raw in (False, True)}
        self.has_xnack = True

    def run(self, commands: list[list], raw: bool = False) -> list:
        """Run commands as one step. Errors are returned."""
        replies = []
        for command in commands:
            self._now += 1
            self._engine.tick()
            out: list = []
            words = [w if isinstance(w, bytes) else str(w).encode() for w in command]
            self._engine.run(self._client, [words], out, 1 << 30)
            self._readers[raw].feed(b"".join(map(bytes, out)))
            replies.append(self._readers[raw].gets())
        return replies

    def pause(self) -> None:
        """Let a later delivery have a later time."""
        self._now += 5


class RedisServer:
    """Any server, by redis-py."""

    def __init__(self, url: str) -> None:
        import redis

        self._clients = {raw: redis.Redis.from_url(url, decode_responses=not raw, protocol=2) for raw in (False, True)}
        for client in self._clients.values():
            client.response_callbacks.clear()
        self._errors = redis.ResponseError
        self.has_xnack = "unknown command" not in str(self.run([["XNACK", "x"]])[0])

    def run(self, commands: list[list], raw: bool = False) -> list:
        """Run one command, or several in MULTI. Errors are returned."""
        if len(commands) == 1:
            try:
                return [self._clients[raw].execute_command(*commands[0])]
            except self._errors as error:
                return [error]
        pipeline = self._clients[raw].pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute(raise_on_error=False)

    def pause(self) -> None:
        """Let a later delivery have a later time."""
        time.sleep(0.002)


@dataclass
class Entry:
    """Truth about one entry.

    other: another consumer is or was responsible for it; needed: time since when it is ours again (handed over); hurt,
    cause: the last danger; reads: tokens of committed batches that have it, with the times; reread: how many of these
    do not count, because it was still pending when a new checkpoint began; undone: those that an older copy of the
    checkpoint lacks; dead: it is a dead letter; removed: it is not in the stream; vanished: the server has lost it;
    visible: a look of the query could notice that it is missing (it was above D and the server knew entries-read), or
    it was in a logged batch; forgotten: it was removed before the first batch of a new checkpoint, and was not
    pending."""

    other: bool = False
    needed: int = 0
    hurt: int = 0
    cause: str = "nothing"
    reads: list[tuple[str, int]] = field(default_factory=list)
    reread: int = 0
    undone: list[tuple[str, int]] = field(default_factory=list)
    dead: bool = False
    removed: bool = False
    vanished: bool = False
    visible: bool = False
    forgotten: bool = False

    def is_served(self) -> bool:
        """Whether a committed batch has it, it is a dead letter, or another consumer has it."""
        return self.dead or (self.other and not self.needed) or any(at >= self.needed for _, at in self.reads)


@dataclass
class Checkpoint:
    """Spark's offset log, and how many of its batches are in the commit log. inherited: tokens of the batches that were
    committed when it began."""

    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    inherited: frozenset[str] = frozenset()

    def batches(self) -> frozenset[str]:
        """Return the tokens of the batches whose rows the sink has."""
        return self.inherited | {offset.token for offset in self.offsets[: self.committed]}

    def end(self) -> Id:
        """Return the end of the last logged batch."""
        return self.offsets[-1].position if self.offsets else ZERO


@dataclass(frozen=True)
class Scenario:
    """powers: what may happen; amid: operators act between any two commands, not only between triggers."""

    name: str
    powers: tuple[str, ...]
    strict: bool = True
    amid: bool = False


class World:
    """One history. Failures are appended to `wrong`."""

    def __init__(self, server: Any, seed: int, scenario: Scenario, steps: int = 14) -> None:
        self.server, self.scenario, self.steps = server, scenario, steps
        self.random = random.Random(f"{seed} {scenario}")
        self.key = f"s{seed}"
        self.server.run([["DEL", self.key, *[f"{name}:{self.key}" for name in ("mark", "record", "dead")]]])
        self.now, self.next_id = 0, 1
        self.entries: dict[Id, Entry] = {}
        self.log = Checkpoint()
        self.earlier: list[Checkpoint] = []  # checkpoints that were replaced by a new one
        self.contents: dict[str, list[tuple[list[Id], int]]] = {}  # token: what each execution has read, and when
        self.notices: list[tuple[int, str, int]] = []
        self.events: Counter[str] = Counter()
        self.recent: dict[str, int] = {}  # events since the last idle trigger, with their times
        self.wrong: list[str] = []
        self.last_event, self.group_was_shared = "", False
        self.counts: Counter[str] = Counter()
        self.saved: Any = None
        self.others, self.dead_consumers = ["other1"], set()
        self.poison: Id | None = None
        self.quiet, self.lenient_once = False, not scenario.strict
        self.source: Source | None = None

    # -- hooks of the source -----------------------------------------------------------------------------------------

    def hook(self, when: str, commands: list) -> None:
        """Called before and after each command of the source."""
        self.now += 1
        if when == "before":
            for command in commands:
                if command[0] == "XACK":
                    self._check_acknowledged(list(map(parse, command[3:])), commands)
        elif any(command[:2] == ["XINFO", "STREAM"] for command in commands):
            group = self._group_info()
            delivered = parse(group["last-delivered-id"]) if group else ZERO
            is_counted = bool(group) and (group["entries-read"] is not None or group["consumers"] < 2)
            for entry_id, entry in self.entries.items():
                is_seen = entry.removed and is_counted and entry_id > delivered
                entry.visible |= is_seen and not entry.vanished and not entry.forgotten
        if self.quiet:
            return
        if self.random.random() < 0.012:
            self.counts["kills"] += 1
            raise KilledError
        amid = [p for p in self.scenario.powers if p in ONLINE or self.scenario.amid]
        if amid and self.random.random() < 0.06:
            self.act(self.random.choice(amid))

    def _check_acknowledged(self, ids: list[Id], commands: list) -> None:
        is_dead_letter = any(c[0] == "XADD" for c in commands)
        for entry_id in ids:
            entry = self.entries[entry_id]
            if is_dead_letter:
                entry.dead = True
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
        self.act("produce")
        triggers = self.steps
        while triggers > 0:
            triggers -= self._process(triggers)
        self.quiet = True
        self._drain()
        self._check_end()

    def _process(self, triggers: int) -> int:
        """Run one process of the driver. Return the number of triggers."""
        done = 0
        try:
            self.source = self._new_source()
            start = self._recover()
            while done < triggers:
                done += 1
                for _ in range(self.random.randrange(3)):
                    self.act(self.random.choice(("produce", *self.scenario.powers)))
                start = self._trigger(start)
        except KilledError:
            pass
        except StopError as stop:
            self._stopped(*stop.args)
        except Exception as error:  # the server has refused a command: the query fails, and starts again
            if not any(word in str(error) for word in ("NOGROUP", "BUSYGROUP", "no such key", "requires the key")):
                raise
            self.counts["errors"] += 1
        if not self.quiet and "checkpoint" in self.scenario.powers and self.random.random() < 0.3:
            self._older_checkpoint()
        if not self.quiet and "renew" in self.scenario.powers and self.random.random() < 0.3:
            self._new_checkpoint()
        return max(done, 1)

    def _new_source(self) -> Source:
        powers = self.scenario.powers
        return Source(
            self.server, self.key, self.hook, self.report, strict=not self.lenient_once,
            claims=lambda name: "claims" in powers and name in self.dead_consumers,
            max_deaths=2 if "poison" in powers else None, prefetch="claims" not in powers,
        )  # fmt: skip

    def _recover(self) -> Offset:
        """What Spark does at a start: run the last logged batch again if it is not committed."""
        assert self.source is not None
        log = self.log
        start = log.offsets[log.committed - 1] if log.committed else self.source.initial_offset()
        if len(log.offsets) > log.committed:
            start = self._execute(start, log.offsets[-1])
        return start

    def _trigger(self, start: Offset) -> Offset:
        assert self.source is not None
        begun = self.now
        end = self.source.latest_offset(start)
        if end is start:
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
        assert self.source is not None
        batch = self.source.plan(start, end)
        for _ in range(self.random.randrange(3)):
            self.source.background_step()
        for _ in range(1 + (self.random.random() < 0.1)):  # a task may run twice
            ids = self.source.read(end, batch)
            self._check_same(end, ids)
            if self.poison in ids:
                raise KilledError
        for _ in range(self.random.randrange(3)):
            self.source.background_step()
        self._spark_may_die()
        self.now += 1
        self.log.committed += 1
        for entry_id in ids:
            self.entries[entry_id].reads.append((end.token, self.now))
        self.counts["batches"] += 1
        self._settled()
        self._spark_may_die()
        self.source.commit(end)
        return end

    def _settled(self) -> None:
        """A lenient run has brought a strict query over the finding: it is strict again."""
        self.lenient_once = not self.scenario.strict
        if self.source is not None:
            self.source.strict = self.scenario.strict

    def _spark_may_die(self) -> None:
        if not self.quiet and self.random.random() < 0.04:
            self.counts["kills"] += 1
            raise KilledError

    def _check_same(self, end: Offset, ids: list[Id]) -> None:
        """A replay has the same entries, or there was a notice, or the batch was set aside."""
        before = self.contents.setdefault(end.token, [])
        is_changed = before and ids and before[-1][0] and before[-1][0] != ids
        if is_changed and not any(at > before[-1][1] for at, *_ in self.notices):
            self.fail("changed replay", ids)
        before.append((ids, self.now))

    def _stopped(self, outcome: str, count: int) -> None:
        """A strict query has stopped. The operator starts it once with failOnDataLoss=false."""
        self.now += 1
        self.notices.append((self.now, outcome, count))
        self.counts[f"stop {outcome}"] += 1
        self.counts["stops"] += 1
        if not self.recent.keys() & CAUSES[outcome]:
            self.fail("stopped again" if self.events.keys() & CAUSES[outcome] else "false alarm", count, outcome)
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
        for _ in range(12):
            idle = 0
            try:
                self.source = self._new_source()
                start = self._recover()
                for _ in range(200):
                    end = self._trigger(start)
                    idle = idle + 1 if end is start else 0
                    if idle == 2:
                        return
                    start = end
            except StopError as stop:
                self._stopped(*stop.args)
            except KilledError:  # poison
                pass
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

    # -- other clients and operators -----------------------------------------------------------------------------------

    def happened(self, event: str) -> None:
        """Remember an event that may explain what the source does later."""
        self.now += 1
        self.events[event] += 1
        self.last_event = event
        self.recent[event] = self.now

    def act(self, power: str) -> None:
        """Let one power act."""
        if not self.quiet and power not in ("checkpoint", "renew", "poison"):  # those act elsewhere
            getattr(self, "_" + power)()

    def _do(self, *command: Any) -> Any:
        return self.server.run([list(command)])[0]

    def _pending(self, consumer: str | None) -> list[Id]:
        rows = self._do("XPENDING", self.key, "g", "-", "+", 10000)
        rows = rows if isinstance(rows, list) else []
        return [parse(row[0]) for row in rows if consumer is None or row[1] == consumer]

    def _some(self, ids: list[Id]) -> list[Id]:
        return sorted(self.random.sample(ids, min(len(ids), self.random.randint(1, 3))))

    def _endanger(self, ids: Any = None) -> None:
        """These entries (or all) may be lost from now on, unless they are served later. Not those that were lost
        before: they have left the stream, or the group has passed them and they are not pending."""
        passed = max(self._delivered(), self.log.end())
        pending = set(self._pending("us"))
        for entry_id in list(self.entries) if ids is None else ids:
            entry = self.entries[entry_id]
            is_lost = entry.removed or (entry_id <= passed and entry_id not in pending)
            if not entry.is_served() and not (entry.hurt and is_lost):
                entry.hurt, entry.cause = self.now, self.last_event
                entry.cause += "" if self.log.offsets else BEFORE_FIRST

    def _need(self, ids: list[Id]) -> None:
        """These entries of other consumers are ours from now on, unless we have read them before."""
        for entry in (self.entries[i] for i in ids if not self.entries[i].reads):
            entry.needed = max(self.now, 1)
            if entry.removed:
                entry.hurt, entry.cause = self.now, "removed while another consumer had it"

    def _group_info(self) -> dict[str, Any]:
        groups = self._do("XINFO", "GROUPS", self.key)
        pairs = groups[0] if isinstance(groups, list) and groups else []
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def _delivered(self) -> Id:
        return parse(self._group_info().get("last-delivered-id", "0-0"))

    def _produce(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            entry_id = (self.next_id, 0)
            self.next_id += 1
            self._do("XADD", self.key, text(entry_id), "v", "1")
            self.entries[entry_id] = Entry()
            if "poison" in self.scenario.powers and self.poison is None and self.random.random() < 0.1:
                self.poison = entry_id

    def _shared(self) -> None:
        """Another consumer reads, and acknowledges a part. It may die afterwards."""
        name = self.others[-1]
        self.group_was_shared = True
        reply = self._do("XREADGROUP", "GROUP", "g", name, "COUNT", self.random.randint(1, 3), "STREAMS", self.key, ">")
        if isinstance(reply, list):
            self.happened("shared")
            for entry_id in (parse(row[0]) for row in reply[0][1]):
                self.entries[entry_id].other, self.entries[entry_id].needed = True, 0
        if self.random.random() < 0.5 and (ids := self._pending(name)):
            self._do("XACK", self.key, "g", *map(text, self._some(ids)))
        if self.random.random() < 0.2:
            self.dead_consumers.add(name)
            self.others.append(f"other{len(self.others) + 1}")

    def _claims(self) -> None:
        """Entries of a dead consumer are ours, if claims are on."""
        for name in self.dead_consumers:
            self._need([i for i in self._pending(name) if not self.entries[i].needed])

    def _hand(self) -> None:
        """A client hands entries of another consumer to us (XCLAIM)."""
        ids = [i for name in self.others for i in self._pending(name)]
        if ids:
            self.happened("hand")
            self.server.pause()
            self._need(self._claim_for("us", self._some(ids)))
            self.server.pause()

    def _claim_for(self, consumer: str, ids: list[Id]) -> list[Id]:
        return list(map(parse, self._do("XCLAIM", self.key, "g", consumer, 0, *map(text, ids), "JUSTID")))

    def _take(self) -> None:
        """A client claims our entries for another consumer."""
        if ids := self._pending("us"):
            self.happened("take")
            for entry_id in self._claim_for(self.others[-1], self._some(ids)):
                self.entries[entry_id].other, self.entries[entry_id].needed = True, 0

    def _ack_ours(self) -> None:
        """An operator acknowledges our entries."""
        if ids := self._some(self._pending("us")):
            self.happened("ack_ours")
            self._endanger(ids)
            self._do("XACK", self.key, "g", *map(text, ids))

    def _xnack(self) -> None:
        """A client releases entries, ours or another consumer's."""
        names = [name for name in (*self.others, "us") if self._pending(name)]
        if names and self.server.has_xnack:
            name = self.random.choice(names)
            ids = self._some(self._pending(name))
            self.happened("xnack_ours" if name == "us" else "xnack")
            self._do("XNACK", self.key, "g", "FAIL", "IDS", len(ids), *map(text, ids))
            self._need(ids if name != "us" else [])

    def _existing(self) -> list[Id]:
        rows = self._do("XRANGE", self.key, "-", "+")
        return [parse(row[0]) for row in rows] if isinstance(rows, list) else []

    def _remove(self, ids: list[Id]) -> None:
        self._endanger(ids)
        has_begun = self.log.offsets or self._group_info()
        pending = set(self._pending("us"))
        for entry_id in ids:
            self.entries[entry_id].removed = True
            self.entries[entry_id].forgotten |= self._is_unlogged() and entry_id not in pending
            self.entries[entry_id].other |= not has_begun  # before the query existed

    def _is_unlogged(self) -> bool:
        """Whether a new checkpoint has no batch yet: it answers for entries from its first batch on."""
        return bool(self.events["renew"]) and not self.log.offsets

    def _trim(self) -> None:
        if ids := self._existing():
            self.happened("trim")
            cut = self.random.randrange(len(ids) + 1)
            self._remove(ids[:cut])
            self._do("XTRIM", self.key, "MAXLEN", len(ids) - cut)

    def _xdel(self) -> None:
        if ids := self._some(self._existing()):
            self.happened("xdel")
            self._remove(ids)
            self._do("XDEL", self.key, *map(text, ids))

    def _setid(self) -> None:
        """The group is moved, with or without ENTRIESREAD."""
        delivered = self._delivered()
        to = self.random.choice([*self.entries, ZERO])
        if delivered in (ZERO, to):
            return
        self.happened("setid_back" if to < delivered else "setid_forward")
        passed = max(delivered, self.log.end())
        self._endanger([i for i in self.entries if passed < i <= to])
        below = sum(i <= to for i in self.entries)
        counted = ["ENTRIESREAD", below] if self.random.random() < 0.5 else []
        self._do("XGROUP", "SETID", self.key, "g", text(to), *counted)

    def _destroy(self) -> None:
        """The group is destroyed, and perhaps created again elsewhere."""
        self.happened("destroy")
        self._endanger()
        self._do("XGROUP", "DESTROY", self.key, "g")
        if self.random.random() < 0.4:
            self._do("XGROUP", "CREATE", self.key, "g", self.random.choice(("0", "$")))

    def _delconsumer(self) -> None:
        self.happened("delconsumer")
        self._endanger(self._pending("us"))
        self._do("XGROUP", "DELCONSUMER", self.key, "g", "us")

    def _delete(self) -> None:
        """The stream is deleted, with its groups."""
        self.happened("delete")
        self._remove(self._existing())
        self._endanger()
        self._do("DEL", self.key)

    def _lose_mark(self) -> None:
        self.happened("lose_mark")
        self._do("DEL", f"mark:{self.key}")

    def _lose_record(self) -> None:
        self.happened("lose_record")
        self._do("DEL", f"record:{self.key}")

    def _restore(self) -> None:
        """The server returns to an older state (a replica that lagged, a backup), or saves one."""
        names = (self.key, f"mark:{self.key}", f"record:{self.key}", f"dead:{self.key}")
        if self.saved is None or self.random.random() < 0.5:
            self.saved = self.server.run([["DUMP", name] for name in names], raw=True)
            return
        self.happened("restore")
        self._endanger()
        before = set(self._existing())
        self._do("DEL", *names)
        for name, payload in zip(names, self.saved, strict=True):
            if payload:
                self._do("RESTORE", name, 0, payload)
        for entry_id in before - set(self._existing()):
            self.entries[entry_id].removed = self.entries[entry_id].vanished = True
        self.saved = None


ONLINE = ("produce", "shared", "claims", "hand", "take", "xnack")  # act between any two commands
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
    "setid_forward", "take",
}  # fmt: skip
