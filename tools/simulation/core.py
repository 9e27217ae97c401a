"""Random states of a stream, its group and a checkpoint, given to the pure diagnosis: no server, millions of states.

    python -m tools.simulation.core --states 5000000 --seed 1

Actions change a small world as producers, operators, other consumers and failing servers do. For each entry the world
knows whether the query has committed it, and whether it was delivered to others. So it knows the correct result of each
state: every existing entry that was not committed is delivered, or a finding reports it; none is delivered twice.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.findings.balance import Known, StreamFacts, balance
from spark_streams.source.findings.diagnosis import Diagnosis, diagnose, explain
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.group_state import GroupState, OtherConsumer
from spark_streams.source.findings.remedies import Act, remedy_of
from spark_streams.source.findings.repair import repair_of
from spark_streams.source.findings.snapshot import Ask, Evidence, Question, Run, Snapshot
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count, Offset, Share
from spark_streams.wire.replies.xinfo import StreamState

MEMBER = Membership(("s",), "g", "spark")
FIRST = 1_000_000  # IDs of a stream that is created again are lower, or continue
Entry = tuple[int, int]  # number of the stream among those of this name, and the entry's ID


def id_of(number: int) -> StreamId:
    """Return the ID of this number; 0: before the first entry."""
    return MIN_ID if number == 0 else StreamId(number, 0)


@dataclass
class Group:
    """State of the group.

    read: entries-read; None: unknown to the server. has_consumer: our consumer exists. pending, theirs: entries that
    are pending for us, and for others. others: other consumers exist.
    """

    position: int
    read: int | None
    has_consumer: bool = False
    pending: set[Entry] = field(default_factory=set)
    theirs: set[Entry] = field(default_factory=set)
    others: bool = False


@dataclass
class Server:
    """State of the server.

    life: number of the stream among those of its name. removed: trimmed and deleted entries. deleted: IDs of deleted
    entries. mark: the commit mark.
    """

    life: int = 1
    exists: bool = True
    last: int = FIRST
    added: int = 0
    entries: list[int] = field(default_factory=list)
    removed: set[Entry] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    group: Group | None = None
    mark: int | None = None


@dataclass
class Checkpoint:
    """State of the checkpoint. done: entries that its batches have committed."""

    logged: int
    begun: bool = False
    count: Count | None = None
    done: set[Entry] = field(default_factory=set)


class World:
    """One query of one stream.

    delivered_to_others: entries that other consumers received at any time. ever_removed: removed entries, which a
    restored server may have again. actions: names of the actions so far.
    """

    def __init__(self, chance: random.Random, bookmark: bool) -> None:
        self.chance = chance
        self.bookmark = bookmark
        self.server = Server()
        self.checkpoint = Checkpoint(0)
        self.delivered_to_others: set[Entry] = set()
        self.ever_removed: set[Entry] = set()
        self.actions: list[str] = []
        self.lives = 1
        self.newest = FIRST
        self.server.group = Group(0, 0, has_consumer=True)
        self.add()
        self.commit()
        self.saved = deepcopy(self.server), deepcopy(self.checkpoint)

    # -- daily actions -------------------------------------------------------------------------------------------

    def add(self) -> None:
        """A producer adds entries."""
        server = self.server
        if not server.exists:
            self._make_stream()
        server = self.server
        for _ in range(self.chance.randint(1, 4)):
            if server.last >= FIRST:  # derived from the time, which a restored server does not set back
                server.last = self.newest = max(self.newest, server.last)
            server.last += 1
            server.added += 1
            server.entries.append(server.last)
            self.newest = max(self.newest, server.last)

    def reserve(self) -> None:
        """The query reserves entries, and dies before its offset is logged."""
        server, group = self.server, self.server.group
        if group is None or not group.has_consumer or self.bookmark or self.is_above():
            return
        new = [number for number in server.entries if number > group.position][: self.chance.randint(1, 4)]
        if new:
            group.pending |= {(server.life, number) for number in new}
            self._advance(group, new[-1])

    def commit(self) -> None:
        """Run a batch of pending and new entries through to the commit log. Only if nothing is wrong."""
        server, group = self.server, self.server.group
        if group is None or not group.has_consumer or self.is_above():
            return
        self.reserve()
        if self.bookmark:
            new = [number for number in server.entries if number > self.checkpoint.logged][: self.chance.randint(1, 4)]
            batch = {(server.life, number) for number in new}
            position = max(new, default=group.position)
            group.read = len(self._up_to(position))
        else:
            batch, position = group.pending, group.position
        group.pending, group.position = set(), position
        server.mark = position
        checkpoint = self.checkpoint
        read = len(self._up_to(position))
        missed = 0 if group.read is None else read - group.read
        count = Count(read, server.added, missed, shared=group.others)
        self.checkpoint = Checkpoint(position, True, count, checkpoint.done | batch)

    def is_above(self) -> bool:
        """Whether group and checkpoint do not match: a query would not continue without a diagnosis."""
        return any(action in _ODD for action in self.actions)

    def _advance(self, group: Group, to: int) -> None:
        """Move the group and count as Redis 7.0: trimmed entries do not count, a deleted one ahead resets the count."""
        if any(number > group.position for number in self.server.deleted):
            group.read = None
        if group.read is not None:
            group.read += sum(group.position < number <= to for number in self.server.entries)
        group.position = to

    def _up_to(self, position: int) -> list[int]:
        """Return all IDs that the stream ever had up to a position."""
        removed = [number for life, number in self.server.removed if life == self.server.life]
        return [number for number in [*removed, *self.server.entries] if number <= position]

    def _make_stream(self) -> None:
        server = self.server
        self.lives += 1
        last = self.chance.choice([FIRST - 1000 * self.lives, server.last])
        self.server = Server(life=self.lives, last=last, mark=server.mark)

    # -- actions of others, operators and accidents --------------------------------------------------------------

    def trim(self) -> None:
        """Trim the oldest entries."""
        self._remove(self.server.entries[: self.chance.randint(1, 5)])

    def delete(self) -> None:
        """Delete one entry."""
        if self.server.entries:
            number = self.chance.choice(self.server.entries)
            self.server.deleted.add(number)
            self._remove([number])

    def _remove(self, numbers: list[int]) -> None:
        self.ever_removed |= {(self.server.life, number) for number in numbers}
        self.server.removed |= {(self.server.life, number) for number in numbers}
        self.server.entries = [number for number in self.server.entries if number not in numbers]

    def save(self) -> None:
        """Save a backup of the server, and a copy of the checkpoint."""
        self.saved = deepcopy(self.server), deepcopy(self.checkpoint)

    def restore_server(self) -> None:
        """Restore the server from an older state."""
        self.server = deepcopy(self.saved[0])

    def restore_checkpoint(self) -> None:
        """Use an older copy of the checkpoint."""
        self.checkpoint = deepcopy(self.saved[1])

    def drop_stream(self) -> None:
        """DEL."""
        self._make_stream()
        self.server.exists = False

    def replace_stream(self) -> None:
        """DEL, after which a producer continues."""
        self._make_stream()
        self.add()

    def destroy_group(self) -> None:
        """XGROUP DESTROY."""
        self.server.group = None

    def create_group(self) -> None:
        """XGROUP CREATE at an ID, without ENTRIESREAD."""
        if self.server.group is None and self.server.exists:
            self.server.group = Group(self._anywhere(), None)

    def seek(self) -> None:
        """XGROUP SETID."""
        if self.server.group is not None:
            self.server.group.position, self.server.group.read = self._anywhere(), None

    def delete_consumer(self) -> None:
        """XGROUP DELCONSUMER."""
        if self.server.group is not None:
            self.server.group.has_consumer, self.server.group.pending = False, set()

    def lose_mark(self) -> None:
        """Delete the commit mark."""
        self.server.mark = None

    def others_read(self) -> None:
        """Deliver entries to another consumer of the group."""
        group = self.server.group
        new = [] if group is None else [number for number in self.server.entries if number > group.position]
        if group is None or not new:
            return
        new = new[: self.chance.randint(1, 3)]
        group.theirs |= {(self.server.life, number) for number in new}
        self.delivered_to_others |= {(self.server.life, number) for number in new}
        group.others = True
        self._advance(group, new[-1])

    def others_leave(self) -> None:
        """Acknowledge all entries of the other consumers, and delete them."""
        if self.server.group is not None:
            self.server.group.others, self.server.group.theirs = False, set()

    def _anywhere(self) -> int:
        return self.chance.choice([0, self.checkpoint.logged, *self.server.entries, self.server.last])

    # -- what the driver reads -----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as `fetch_state` and `Marks` read it."""
        server, group = self.server, self.server.group
        first = id_of(server.entries[0]) if server.entries else None
        head = StreamState(id_of(server.last), len(server.entries), server.added, first, server.exists)
        if not server.exists:
            head = StreamState(MIN_ID, 0, 0, None, exists=False)
        marks = {} if server.mark is None else {"s": Mark(id_of(server.mark), no_ack=self.bookmark)}
        return Snapshot({"s": head}, {"s": None if group is None else self._state(group)}, marks)

    def _state(self, group: Group) -> GroupState:
        others = (OtherConsumer("bob", len(group.theirs)),) if group.others else ()
        return GroupState(
            id_of(group.position),
            group.read,
            None,
            len(group.pending),
            group.has_consumer,
            others,
            counted=group.read is not None,
        )

    def offset(self) -> Offset:
        """Return the checkpoint's offset."""
        checkpoint = self.checkpoint
        if not checkpoint.begun:
            return Offset("g", "spark", {"s": MIN_ID})
        counts = {} if checkpoint.count is None else {"s": checkpoint.count}
        return Offset(
            "g", "spark", {"s": id_of(checkpoint.logged)}, {"s": Share(1, True, MIN_ID)}, token="t", counts=counts
        )

    def answer(self, question: Question, evidence: Evidence) -> Evidence:
        """Add the server's answer to the earlier evidence. The server can count existing entries."""
        group = self.server.group
        if question.ask is Ask.PENDING:
            pending = set() if group is None else group.pending | group.theirs
            return evidence._replace(
                pending=len(pending), last_pending=id_of(max((number for _, number in pending), default=0))
            )
        above = sum(id_of(number) > question.position for number in self.server.entries)
        has = any(id_of(number) == question.position for number in self.server.entries)
        return evidence._replace(has_entry=has, up_to=self.server.added - above)


# After these actions, a query does not continue without a diagnosis.
_ODD = {
    *("restore_server", "restore_checkpoint", "drop_stream", "replace_stream", "destroy_group", "create_group"),
    *("seek", "delete_consumer", "others_read"),
}
_HIDE = {"seek", "create_group", "destroy_group", "others_read", "trim", "delete"}
_DAILY = ("add", "reserve", "commit", "add", "commit", "trim", "delete", "save", "others_leave")
_RARE = (*sorted(_ODD), "lose_mark")


def world_of(seed: int) -> World:
    """Return the world of a seed, after some actions."""
    chance = random.Random(seed)
    world = World(chance, bookmark=chance.random() < 0.25)
    for _ in range(chance.randint(1, 9)):
        action = chance.choice(_DAILY if chance.random() < 0.6 else _RARE)
        if action == "others_read" and world.bookmark:
            continue
        world.actions.append(action)
        getattr(world, action)()
    return world


@dataclass
class Outcome:
    """Outcome of a diagnosis. delivers: entries that the query will receive. stops: finding of the error."""

    findings: list[Finding]
    stops: Finding | None
    delivers: set[Entry]
    reported: bool
    begin: Offset


def outcome_of(world: World, lenient: bool) -> Outcome:
    """Run the diagnosis on a world, and apply its repair."""
    snapshot, begin = world.snapshot(), world.offset()
    count = world.checkpoint.count
    run = Run(MEMBER, {} if count is None else {"s": count}, bookmarks={} if world.bookmark else None)
    findings = list(_findings(world, diagnose, snapshot, begin, run))
    stops = _stops(findings, lenient)
    if stops is not None:
        return Outcome(findings, stops, set(), True, begin)
    repair = repair_of(findings, begin, lenient)
    server = world.server
    for stream, start in {**repair.created, **repair.moved}.items():
        server.exists = True
        assert stream == "s"
        if server.group is None:
            server.group = Group(_number(start.position), start.read)
        server.group.position, server.group.read = _number(start.position), start.read
    if repair.unmarked:
        server.mark = None
    begin = repair.begin
    if server.group is not None and not world.bookmark:
        more = list(_findings(world, explain, world.snapshot(), begin, run))
        findings += more
        stops = _stops(more, lenient)
    group = server.group
    position = 0 if group is None else group.position
    if world.bookmark:
        position = _number(begin["s"])
    pending = set() if group is None else {entry for entry in group.pending if entry[1] > _number(begin["s"])}
    delivers = {(server.life, number) for number in server.entries if number > position} | pending
    reported = any(_is_counted(finding, lenient) for finding in findings)
    return Outcome(findings, stops, delivers, reported or stops is not None, begin)


def _findings(
    world: World, examine: Callable[..., Diagnosis], snapshot: Snapshot, begin: Offset, run: Run
) -> tuple[Finding, ...]:
    """Return the findings of `diagnose` or `explain`, with an answer to each of its questions."""
    evidence: dict[str, Evidence] = {}
    while questions := examine(snapshot, begin, run, evidence).questions:
        for question in questions:
            evidence[question.stream] = world.answer(question, evidence.get(question.stream, Evidence()))
    return examine(snapshot, begin, run, evidence).findings


def _stops(findings: list[Finding], lenient: bool) -> Finding | None:
    return next((finding for finding in findings if remedy_of(finding, lenient).error is not None), None)


def _facts(world: World, begin: Offset) -> StreamFacts:
    """Return what the account of the query begins with."""
    server, group = world.server, world.server.group
    assert group is not None
    snapshot = world.snapshot()
    head, state = snapshot.heads["s"], snapshot.groups["s"]
    assert state is not None
    if world.bookmark:
        state = state.as_bookmark(begin["s"])
    count = world.checkpoint.count
    return StreamFacts(
        head,
        state,
        lambda position: server.added - sum(id_of(number) > position for number in server.entries),
        Known(count),
        count,
        begin["s"],
        len(_pending(group)),
        has_token=world.checkpoint.begun,
        is_shared=state.is_shared(MEMBER),
    )


def _pending(group: Group) -> set[Entry]:
    """Return the entries that are reserved for the query. Those above a group that was set back are acknowledged: the
    group will deliver them again."""
    return {entry for entry in group.pending if entry[1] <= group.position}


def _is_reported_at_end(world: World, begin: Offset, entries: int) -> bool:
    """Whether the account reports so many lost entries when the query has read the stream to its end."""
    server, group = world.server, world.server.group
    if group is None:
        return False
    account = balance(_facts(world, begin))
    count, above = account.count, sum(number > group.position for number in server.entries)
    return count is not None and not count.shared and account.lost + server.added - count.read - above >= entries


def _miscounted(world: World, outcome: Outcome) -> Iterator[str]:
    """Yield the errors of the account in a world without other findings."""
    server, group = world.server, world.server.group
    assert group is not None
    facts = _facts(world, outcome.begin)
    account = balance(facts)
    if _is_beyond_counting(world):
        return
    logged, pending = _number(outcome.begin["s"]), _pending(group)
    removed = (
        {entry for entry in server.removed if entry[0] == server.life and entry[1] > logged}
        - world.delivered_to_others
        - pending
    )
    expected = 0 if facts.held is None else len(removed)
    is_unknown = facts.is_shared and account.count is None
    passed_over = {
        (server.life, number)
        for number in server.entries
        if logged < number <= group.position and (server.life, number) not in pending
    }
    # A client may have set the group forward, over entries that the account then counts.
    is_exact = expected <= account.lost <= expected + len(passed_over - world.delivered_to_others)
    if not is_exact and not (is_unknown and account.lost == 0):
        yield f"{account.lost} lost of {expected}"


def _is_beyond_counting(world: World) -> bool:
    """Whether a documented limit applies.

    These are a group that was created again by hand, or moved while others read from it, changes of stream and group
    after a restore, and an older checkpoint without its commit mark in a group that others read from. The model does
    not know what others received before that.
    """
    actions = set(world.actions)
    is_hidden = "restore_server" in actions and bool(_HIDE & actions)
    return (
        "create_group" in actions
        or {"seek", "others_read"} <= actions
        or {"restore_checkpoint", "lose_mark", "others_read"} <= actions
        or is_hidden
    )


def _is_counted(finding: Finding, lenient: bool) -> bool:
    acts = remedy_of(finding, lenient).acts
    return Act.SKIP_TO in acts or (Act.COUNT in acts and finding.lost != 0)


def _number(position: StreamId) -> int:
    return position.ms


def faults(seed: int) -> Iterator[str]:
    """Yield the faults of the core in the world of a seed, strict and lenient."""
    for lenient in (False, True):
        world = world_of(seed)
        healthy = not _ODD & set(world.actions)
        outcome = outcome_of(world, lenient)
        kinds = "+".join(finding.kind.name for finding in outcome.findings) or "nothing"
        shown = f"{'lenient' if lenient else 'strict'}: {kinds} after {' '.join(world.actions)}"
        if healthy and outcome.findings:
            yield f"false alarm: {shown}"
        if outcome.stops is not None:
            continue
        done, present = world.checkpoint.done, {(world.server.life, number) for number in world.server.entries}
        silent = present - done - world.delivered_to_others - world.ever_removed - outcome.delivers
        # Documented: a lenient query starts at the group's position on a new stream. It takes a server from before its
        # own group existed for a new stream, too, and reads that again.
        is_created_again = any(finding.kind is Kind.STREAM_REPLACED for finding in outcome.findings)
        # Documented: changes of stream and group after a restore may hide what the restore and they have passed over.
        moved_since = _HIDE & set(_after_first(world.actions, "restore_server"))
        is_reported = outcome.reported or _is_reported_at_end(world, outcome.begin, len(silent))
        is_excused = _others_may_have_read(world) or is_created_again or bool(moved_since)
        if silent and not is_reported and not is_excused:
            yield f"silent: {shown}"
        twice = outcome.delivers & present & done
        if twice and not is_created_again:
            yield f"twice: {shown}"
        if not outcome.findings:
            yield from (f"{fault}: {shown}" for fault in _miscounted(world, outcome))
        vanished = {entry for entry in done if entry[0] == world.server.life} - present - world.server.removed
        if vanished and not outcome.reported and not moved_since and not is_created_again:
            yield f"vanished in silence: {shown}"


def _after_first(actions: list[str], action: str) -> list[str]:
    """Return the actions after the first one of this name."""
    return actions[actions.index(action) + 1 :] if action in actions else []


def _others_may_have_read(world: World) -> bool:
    """Whether others may have read the entries, as far as the query can know (documented).

    A group that others read from and that was moved by hand looks like a group that they have read. So does one above
    an older copy of the checkpoint, if the commit mark is lost, too.
    """
    actions = set(world.actions)
    return "others_read" in actions and (
        bool({"seek", "create_group"} & actions) or {"restore_checkpoint", "lose_mark"} <= actions
    )


def main() -> int:
    """Print the faults by kind, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser("python -m tools.simulation.core", description=__doc__)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun, counts, first = time.monotonic(), Counter[str](), dict[str, tuple[int, str]]()
    for seed in range(arguments.seed, arguments.seed + arguments.states):
        for fault in faults(seed):
            kind = fault.split(" after ")[0]
            counts[kind] += 1
            first.setdefault(kind, (seed, fault))
    seconds = time.monotonic() - begun
    rate = arguments.states / seconds
    print(f"{arguments.states} states, {sum(counts.values())} faults in {seconds:.0f} s ({rate:,.0f}/s)")
    for kind, count in counts.most_common():
        print(f"{count:6} {kind}: seed {first[kind][0]}: {first[kind][1]}")
    return bool(counts)


if __name__ == "__main__":
    sys.exit(main())
