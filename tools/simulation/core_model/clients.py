"""What a history knows to be true, and everything beside the query that happens to a stream: producers, other
consumers, operators, accidents of the server.

What they do is noted in the truth about each entry: which ones are another consumer's, and which ones may be lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hiredis

from tools.simulation.core_model.facts import ZERO, Id, parse, text
from tools.simulation.in_process.core import Core
from tools.simulation.in_process.server import ProcessServer

_COMMAND_NS = 1_000_000  # so that two deliveries never have the same time in milliseconds


class InProcess:
    """The engine's core in this process (tools.simulation.in_process), with one clock for server and product."""

    def __init__(self) -> None:
        self.server = ProcessServer(core=Core())
        self._readers = {raw: hiredis.Reader(**({} if raw else {"encoding": "utf-8"})) for raw in (False, True)}

    @property
    def core(self) -> Core:
        """The core, which the product is patched to."""
        return self.server.core

    def begin(self, seed: int) -> None:
        self.core.begin(seed)
        self._client = self.core.engine.connect("world", "world")

    def run(self, commands: list[list[Any]], raw: bool = False) -> list[Any]:
        replies = []
        reader = self._readers[raw]
        for command in commands:
            self.core.clock.pass_ns(_COMMAND_NS)
            out: list[bytes] = []
            self.core.run(self._client, [[w if isinstance(w, bytes) else str(w).encode() for w in command]], out)
            reader.feed(b"".join(out))
            replies.append(reader.gets())
        return replies

    def pause(self) -> None:
        self.core.clock.pass_ns(5 * _COMMAND_NS)


# -- what a history knows to be true -----------------------------------------------------------------------------------


BEFORE_FIRST = " before the first batch"  # of the checkpoint, that is: it cannot know of it


@dataclass
class Entry:
    """Truth about one entry."""

    other: bool = False  # another consumer is or was responsible for it
    needed: int = 0  # time since when it is ours again (handed over)
    hurt: int = 0  # time of the last danger
    cause: str = "nothing"  # that danger
    reads: list[tuple[str, int]] = field(default_factory=list)  # tokens of committed batches that have it, and times
    reread: int = 0  # how many of these do not count: it was still pending when a new checkpoint began
    undone: list[tuple[str, int]] = field(default_factory=list)  # those that an older copy of the checkpoint lacks
    dead: bool = False  # it is a dead letter
    removed: bool = False  # it is not in the stream
    vanished: bool = False  # the server has lost it
    visible: bool = False  # the query could notice that it is missing: above D, with entries-read, or in a logged batch
    forgotten: bool = False  # removed before the first batch of a new checkpoint, and not pending

    def is_served(self) -> bool:
        """Whether a committed batch has it, it is a dead letter, or another consumer has it."""
        return self.dead or (self.other and not self.needed) or any(at >= self.needed for _, at in self.reads)


@dataclass
class Checkpoint:
    """Spark's offset log, and how many of its batches are in the commit log. inherited: tokens of the batches that were
    committed when it began."""

    offsets: list[Any] = field(default_factory=list)
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
    """powers: what may happen; amid: operators act between any two commands, not only between triggers; in_step:
    nothing happens between two commands, so that two subjects with other commands have the same history."""

    name: str
    powers: tuple[str, ...]
    strict: bool = True
    amid: bool = False
    in_step: bool = False


# -- everything beside the query ---------------------------------------------------------------------------------------


ONLINE = ("produce", "shared", "claims", "hand", "take", "xnack")  # act between any two commands
ELSEWHERE = ("checkpoint", "renew", "poison", "seek")  # they act when no process runs, or in a batch


_LONG_AGO = 100_000_000  # milliseconds, more than claimIdle


class Clients:
    """The stream of one history, what is true about it, and who changes it."""

    def __init__(self, server: InProcess, keys: Any, seed: int, scenario: Scenario) -> None:
        self.server, self.keys, self.scenario = server, keys, scenario
        self.random = random.Random(f"{seed} {scenario}")
        self.key = f"s{seed}"
        server.begin(seed)
        self._do("DEL", *keys.all_of(self.key))
        self.now, self.next_id = 0, 1
        self.entries: dict[Id, Entry] = {}
        self.log = Checkpoint()
        self.events: Counter[str] = Counter()
        self.recent: dict[str, int] = {}  # events since the last idle trigger, with their times
        self.last_event, self.group_was_shared = "", False
        self.saved: Any = None
        self.others, self.dead_consumers = ["other1"], set[str]()
        self.poison: Id | None = None
        self.quiet = False

    def happened(self, event: str) -> None:
        """Remember an event that may explain what the source does later."""
        self.now += 1
        self.events[event] += 1
        self.last_event = event
        self.recent[event] = self.now

    def act(self, power: str) -> None:
        """Let one power act."""
        if not self.quiet and power not in ELSEWHERE:
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
            self._make_idle(name)
            self.others.append(f"other{len(self.others) + 1}")

    def _claims(self) -> None:
        """Entries of a dead consumer are ours, if claims are on."""
        for name in sorted(self.dead_consumers):
            self._need([i for i in self._pending(name) if not self.entries[i].needed])
            self._make_idle(name)

    def _make_idle(self, name: str) -> None:
        """Its entries were delivered long ago."""
        if ids := self._pending(name):
            self._do("XCLAIM", self.key, "g", name, 0, *map(text, ids), "IDLE", _LONG_AGO, "JUSTID")

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
        if names:
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

    def _seek(self) -> None:
        """An operator sets the group with `rstream groups seek`, which writes the mark, too. What it passes over need
        not be read; what is above is to be read again."""
        if not self._group_info():
            return
        self.happened("seek")
        to = self.random.choice([*self.entries, ZERO])
        self._do("XGROUP", "SETID", self.key, "g", text(to))
        key = self.keys.mark(self.key)
        self._do("SET", key, self.keys.sought(text(to), self._do("GET", key)))
        pending, existing = set(self._pending("us")), set(self._existing())
        for entry_id, entry in self.entries.items():
            if entry_id > to and entry_id in existing and entry.reads:
                entry.needed, entry.other = self.now, False
            elif entry_id <= to and (entry.reads or entry_id not in pending):
                entry.other, entry.needed = not entry.reads, 0

    def _forget(self) -> None:
        """A replica becomes the master that knows how many entries the group had read at its begin (Redis 7.0).
        Once: a second time before the next offset is not noticed."""
        group = self._group_info()
        if group.get("entries-read") and group["consumers"] > 1 and "forget" not in self.events:
            self.happened("forget")
            self._do("XGROUP", "SETID", self.key, "g", group["last-delivered-id"], "ENTRIESREAD", 0)

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
        self._do("DEL", self.keys.mark(self.key))

    def _lose_record(self) -> None:
        self.happened("lose_record")
        self._do("DEL", self.keys.record(self.key))

    def _restore(self) -> None:
        """The server returns to an older state (a replica that lagged, a backup), or saves one."""
        names = self.keys.all_of(self.key)
        if self.saved is None or self.random.random() < 0.5:
            read = [["DUMP" if name in self.keys.streams_of(self.key) else "GET", name] for name in names]
            self.saved = self.server.run(read, raw=True)
            return
        self.happened("restore")
        self._endanger()
        before = set(self._existing())
        self._do("DEL", *names)
        for name, value in zip(names, self.saved, strict=True):
            if value is not None:
                self._do(
                    *(("RESTORE", name, 0, value) if name in self.keys.streams_of(self.key) else ("SET", name, value))
                )
        for entry_id in before - set(self._existing()):
            self.entries[entry_id].removed = self.entries[entry_id].vanished = True
        self.saved = None
