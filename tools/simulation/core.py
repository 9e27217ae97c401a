"""Random states of a stream, its group and a checkpoint, given to the pure diagnosis: no server, millions of states.

    python -m tools.simulation.core --states 5000000 --seed 1

Hands do to a small world what producers, operators, other consumers and failing servers do. The world keeps count of
each entry: whether the query has committed it, and whether others were given it. So it knows what must come of each
state: every entry that is there and was not committed is delivered, or a finding says so; none is delivered twice.
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
from spark_streams.source.findings.account import Books, Known, balance
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
FIRST = 1_000_000  # ids of a stream that is made anew are lower, or go on
Entry = tuple[int, int]  # which stream of this name, and the entry's id


def at(number: int) -> StreamId:
    """The id of this number; 0: before the first entry."""
    return MIN_ID if number == 0 else StreamId(number, 0)


@dataclass
class Group:
    """read: entries-read; None: the server does not know. pending, theirs: entries that we, and others, were given and
    have not acknowledged."""

    position: int
    read: int | None
    known: bool = False
    pending: set[Entry] = field(default_factory=set)
    theirs: set[Entry] = field(default_factory=set)
    others: bool = False


@dataclass
class Server:
    """life: goes up when the stream is made anew. removed: entries that were trimmed or deleted. deleted: ids of the
    latter. mark: the commit mark."""

    life: int = 1
    exists: bool = True
    last: int = FIRST
    added: int = 0
    there: list[int] = field(default_factory=list)
    removed: set[Entry] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    group: Group | None = None
    mark: int | None = None


@dataclass
class Checkpoint:
    """done: what its batches have committed."""

    logged: int
    begun: bool = False
    count: Count | None = None
    done: set[Entry] = field(default_factory=set)


class World:
    """One query of one stream. given: entries that other consumers were given at any time. ever_removed: a server that
    comes back may have them again. hands: what has happened."""

    def __init__(self, chance: random.Random, bookmark: bool) -> None:
        self.chance = chance
        self.bookmark = bookmark
        self.server = Server()
        self.checkpoint = Checkpoint(0)
        self.given: set[Entry] = set()
        self.ever_removed: set[Entry] = set()
        self.hands: list[str] = []
        self.lives = 1
        self.newest = FIRST
        self.server.group = Group(0, 0, known=True)
        self.add()
        self.commit()
        self.saved = deepcopy(self.server), deepcopy(self.checkpoint)

    # -- what happens every day ----------------------------------------------------------------------------------

    def add(self) -> None:
        """A producer."""
        server = self.server
        if not server.exists:
            self._make_stream()
        server = self.server
        for _ in range(self.chance.randint(1, 4)):
            if server.last >= FIRST:  # made of the time: a server that comes back does not set it back
                server.last = self.newest = max(self.newest, server.last)
            server.last += 1
            server.added += 1
            server.there.append(server.last)
            self.newest = max(self.newest, server.last)

    def reserve(self) -> None:
        """The query is given entries, and dies before its offset is logged."""
        server, group = self.server, self.server.group
        if group is None or not group.known or self.bookmark or self.is_above():
            return
        new = [one for one in server.there if one > group.position][: self.chance.randint(1, 4)]
        if new:
            group.pending |= {(server.life, one) for one in new}
            self._advance(group, new[-1])

    def commit(self) -> None:
        """A batch of what is pending and new, through to the commit log. Only if nothing is wrong."""
        server, group = self.server, self.server.group
        if group is None or not group.known or self.is_above():
            return
        self.reserve()
        if self.bookmark:
            new = [one for one in server.there if one > self.checkpoint.logged][: self.chance.randint(1, 4)]
            batch = {(server.life, one) for one in new}
            position = max(new, default=group.position)
            group.read = len(self._up_to(position))
        else:
            batch, position = group.pending, group.position
        group.pending, group.position = set(), position
        server.mark = position
        one = self.checkpoint
        read = len(self._up_to(position))
        missed = 0 if group.read is None else read - group.read
        count = Count(read, server.added, missed, shared=group.others)
        self.checkpoint = Checkpoint(position, True, count, one.done | batch)

    def is_above(self) -> bool:
        """Whether the group and the checkpoint do not go together: a query would not go on without a diagnosis."""
        return any(one in _ODD for one in self.hands)

    def _advance(self, group: Group, to: int) -> None:
        """As Redis 7.0 counts: what was trimmed is not read, and a deleted entry ahead makes it forget."""
        if any(one > group.position for one in self.server.deleted):
            group.read = None
        if group.read is not None:
            group.read += sum(group.position < one <= to for one in self.server.there)
        group.position = to

    def _up_to(self, position: int) -> list[int]:
        """The ids that the stream has ever had up to a position."""
        gone = [one for life, one in self.server.removed if life == self.server.life]
        return [one for one in [*gone, *self.server.there] if one <= position]

    def _make_stream(self) -> None:
        server = self.server
        self.lives += 1
        last = self.chance.choice([FIRST - 1000 * self.lives, server.last])
        self.server = Server(life=self.lives, last=last, mark=server.mark)

    # -- others, operators, accidents ----------------------------------------------------------------------------

    def trim(self) -> None:
        """The oldest entries leave the stream."""
        self._remove(self.server.there[: self.chance.randint(1, 5)])

    def delete(self) -> None:
        """One entry is deleted."""
        if self.server.there:
            one = self.chance.choice(self.server.there)
            self.server.deleted.add(one)
            self._remove([one])

    def _remove(self, some: list[int]) -> None:
        self.ever_removed |= {(self.server.life, one) for one in some}
        self.server.removed |= {(self.server.life, one) for one in some}
        self.server.there = [one for one in self.server.there if one not in some]

    def save(self) -> None:
        """A backup of the server, and a copy of the checkpoint."""
        self.saved = deepcopy(self.server), deepcopy(self.checkpoint)

    def restore_server(self) -> None:
        """The server comes back from an older state."""
        self.server = deepcopy(self.saved[0])

    def restore_checkpoint(self) -> None:
        """An older copy of the checkpoint is used."""
        self.checkpoint = deepcopy(self.saved[1])

    def drop_stream(self) -> None:
        """DEL."""
        self._make_stream()
        self.server.exists = False

    def replace_stream(self) -> None:
        """DEL, and a producer goes on."""
        self._make_stream()
        self.add()

    def destroy_group(self) -> None:
        """XGROUP DESTROY."""
        self.server.group = None

    def create_group(self) -> None:
        """XGROUP CREATE at an id, without ENTRIESREAD."""
        if self.server.group is None and self.server.exists:
            self.server.group = Group(self._anywhere(), None)

    def seek(self) -> None:
        """XGROUP SETID."""
        if self.server.group is not None:
            self.server.group.position, self.server.group.read = self._anywhere(), None

    def delete_consumer(self) -> None:
        """XGROUP DELCONSUMER."""
        if self.server.group is not None:
            self.server.group.known, self.server.group.pending = False, set()

    def lose_mark(self) -> None:
        """The commit mark is deleted."""
        self.server.mark = None

    def others_read(self) -> None:
        """Another consumer is given entries of the group."""
        group = self.server.group
        new = [] if group is None else [one for one in self.server.there if one > group.position]
        if group is None or not new:
            return
        new = new[: self.chance.randint(1, 3)]
        group.theirs |= {(self.server.life, one) for one in new}
        self.given |= {(self.server.life, one) for one in new}
        group.others = True
        self._advance(group, new[-1])

    def others_leave(self) -> None:
        """They have acknowledged all, and are deleted."""
        if self.server.group is not None:
            self.server.group.others, self.server.group.theirs = False, set()

    def _anywhere(self) -> int:
        return self.chance.choice([0, self.checkpoint.logged, *self.server.there, self.server.last])

    # -- what the driver sees ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """As `fetch_state` and `Marks` give it."""
        server, group = self.server, self.server.group
        first = at(server.there[0]) if server.there else None
        head = StreamState(at(server.last), len(server.there), server.added, first, server.exists)
        if not server.exists:
            head = StreamState(MIN_ID, 0, 0, None, exists=False)
        marks = {} if server.mark is None else {"s": Mark(at(server.mark), no_ack=self.bookmark)}
        return Snapshot({"s": head}, {"s": None if group is None else self._state(group)}, marks)

    def _state(self, group: Group) -> GroupState:
        others = (OtherConsumer("bob", len(group.theirs)),) if group.others else ()
        return GroupState(
            at(group.position),
            group.read,
            None,
            len(group.pending),
            group.known,
            others,
            counted=group.read is not None,
        )

    def offset(self) -> Offset:
        """The checkpoint as Spark has it."""
        one = self.checkpoint
        if not one.begun:
            return Offset("g", "spark", {"s": MIN_ID})
        counts = {} if one.count is None else {"s": one.count}
        return Offset("g", "spark", {"s": at(one.logged)}, {"s": Share(1, True, MIN_ID)}, token="t", counts=counts)

    def answer(self, question: Question, evidence: Evidence) -> Evidence:
        """Add the server's answer to what was answered before. The server can count what is there."""
        group = self.server.group
        if question.ask is Ask.PENDING:
            some = set() if group is None else group.pending | group.theirs
            return evidence._replace(pending=len(some), last_pending=at(max((one for _, one in some), default=0)))
        above = sum(at(one) > question.position for one in self.server.there)
        has = any(at(one) == question.position for one in self.server.there)
        return evidence._replace(has_entry=has, up_to=self.server.added - above)


# After these, a query does not simply go on.
_ODD = {
    *("restore_server", "restore_checkpoint", "drop_stream", "replace_stream", "destroy_group", "create_group"),
    *("seek", "delete_consumer", "others_read"),
}
_HIDE = {"seek", "create_group", "destroy_group", "others_read", "trim", "delete"}
_DAILY = ("add", "reserve", "commit", "add", "commit", "trim", "delete", "save", "others_leave")
_RARE = (*sorted(_ODD), "lose_mark")


def world_of(seed: int) -> World:
    """The world of a seed, after some hands."""
    chance = random.Random(seed)
    world = World(chance, bookmark=chance.random() < 0.25)
    for _ in range(chance.randint(1, 9)):
        hand = chance.choice(_DAILY if chance.random() < 0.6 else _RARE)
        if hand == "others_read" and world.bookmark:
            continue
        world.hands.append(hand)
        getattr(world, hand)()
    return world


@dataclass
class Outcome:
    """delivers: what the query is given from now on. stops: the error's finding."""

    findings: list[Finding]
    stops: Finding | None
    delivers: set[Entry]
    told: bool
    begin: Offset


def outcome_of(world: World, lenient: bool) -> Outcome:
    """What the core makes of a world."""
    snapshot, begin = world.snapshot(), world.offset()
    count = world.checkpoint.count
    run = Run(MEMBER, {} if count is None else {"s": count}, bookmarks={} if world.bookmark else None)
    findings = list(_asked(world, diagnose, snapshot, begin, run))
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
        more = list(_asked(world, explain, world.snapshot(), begin, run))
        findings += more
        stops = _stops(more, lenient)
    group = server.group
    position = 0 if group is None else group.position
    if world.bookmark:
        position = _number(begin["s"])
    pending = set() if group is None else {one for one in group.pending if one[1] > _number(begin["s"])}
    delivers = {(server.life, one) for one in server.there if one > position} | pending
    told = any(_is_counted(one, lenient) for one in findings)
    return Outcome(findings, stops, delivers, told or stops is not None, begin)


def _asked(
    world: World, examine: Callable[..., Diagnosis], snapshot: Snapshot, begin: Offset, run: Run
) -> tuple[Finding, ...]:
    """Return the findings of `diagnose` or `explain`, with an answer to each of its questions."""
    evidence: dict[str, Evidence] = {}
    while questions := examine(snapshot, begin, run, evidence).questions:
        for question in questions:
            evidence[question.stream] = world.answer(question, evidence.get(question.stream, Evidence()))
    return examine(snapshot, begin, run, evidence).findings


def _stops(findings: list[Finding], lenient: bool) -> Finding | None:
    return next((one for one in findings if remedy_of(one, lenient).error is not None), None)


def _miscounted(world: World, outcome: Outcome) -> Iterator[str]:
    """What the account of a world does wrong in which nothing else was found."""
    server, group = world.server, world.server.group
    assert group is not None
    snapshot = world.snapshot()
    head, state = snapshot.heads["s"], snapshot.groups["s"]
    assert state is not None
    if world.bookmark:
        state = state.as_bookmark(outcome.begin["s"])
    is_shared = state.is_shared(MEMBER)
    # What is pending above a group that was set back is acknowledged: it will be delivered again.
    pending = {one for one in group.pending if one[1] <= _number(state.last_delivered)}
    count, reserved = world.checkpoint.count, len(pending)
    books = Books(
        head,
        state,
        lambda position: server.added - sum(at(one) > position for one in server.there),
        Known(count),
        count,
        outcome.begin["s"],
        reserved,
        has_token=world.checkpoint.begun,
        is_shared=is_shared,
    )
    found = balance(books)
    if _is_beyond_counting(world):
        return
    logged = _number(outcome.begin["s"])
    gone = {one for one in server.removed if one[0] == server.life and one[1] > logged} - world.given - pending
    expected = 0 if books.held is None else len(gone)
    is_unknown = is_shared and found.count is None
    if found.lost != expected and not (is_unknown and found.lost == 0):
        yield f"{found.lost} lost of {expected}"


def _is_beyond_counting(world: World) -> bool:
    """Documented: a group that was made anew by hand, or moved while others read from it; and what is done to stream
    and group after the server came back. The model does not know what others were given before that."""
    hands = set(world.hands)
    is_hidden = "restore_server" in hands and bool(_HIDE & hands)
    return "create_group" in hands or {"seek", "others_read"} <= hands or is_hidden


def _is_counted(finding: Finding, lenient: bool) -> bool:
    acts = remedy_of(finding, lenient).acts
    return Act.SKIP_TO in acts or (Act.COUNT in acts and finding.lost != 0)


def _number(position: StreamId) -> int:
    return position.ms


def faults(seed: int) -> Iterator[str]:
    """What the core does wrong in the world of a seed, strict or lenient."""
    for lenient in (False, True):
        world = world_of(seed)
        healthy = not _ODD & set(world.hands)
        outcome = outcome_of(world, lenient)
        kinds = "+".join(one.kind.name for one in outcome.findings) or "nothing"
        shown = f"{'lenient' if lenient else 'strict'}: {kinds} after {' '.join(world.hands)}"
        if healthy and outcome.findings:
            yield f"false alarm: {shown}"
        if outcome.stops is not None:
            continue
        done, here = world.checkpoint.done, {(world.server.life, one) for one in world.server.there}
        silent = here - done - world.given - world.ever_removed - outcome.delivers
        # Documented: a lenient query begins where the group of a new stream stands. It takes a server from before its
        # own group was made for a new stream, too, and reads that again.
        begun_anew = any(one.kind is Kind.STREAM_REPLACED for one in outcome.findings)
        if silent and not outcome.told and not _others_may_have_read(world) and not begun_anew:
            yield f"silent: {shown}"
        twice = outcome.delivers & here & done
        if twice and not begun_anew:
            yield f"twice: {shown}"
        if not outcome.findings:
            yield from (f"{fault}: {shown}" for fault in _miscounted(world, outcome))
        vanished = {one for one in done if one[0] == world.server.life} - here - world.server.removed
        # Documented: what is done to stream and group after the server came back may hide what it has lost.
        moved_since = _HIDE & set(world.hands[::-1][: _since(world.hands, "restore_server")])
        if vanished and not outcome.told and not moved_since and not begun_anew:
            yield f"vanished in silence: {shown}"


def _since(hands: list[str], what: str) -> int:
    """How many hands came after the last one of these."""
    return hands[::-1].index(what) if what in hands else 0


def _others_may_have_read(world: World) -> bool:
    """Documented: a group that others read from and that was moved by hand looks like one that they have read. So does
    one above an older copy of the checkpoint, if the commit mark is lost, too."""
    hands = set(world.hands)
    return "others_read" in hands and (
        bool({"seek", "create_group"} & hands) or {"restore_checkpoint", "lose_mark"} <= hands
    )


def main() -> int:
    """Print the faults by kind, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser("python -m tools.simulation.core", description=__doc__)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    begun, found, first = time.monotonic(), Counter[str](), dict[str, tuple[int, str]]()
    for seed in range(given.seed, given.seed + given.states):
        for fault in faults(seed):
            kind = fault.split(" after ")[0]
            found[kind] += 1
            first.setdefault(kind, (seed, fault))
    seconds = time.monotonic() - begun
    print(f"{given.states} states, {sum(found.values())} faults in {seconds:.0f} s ({given.states / seconds:,.0f}/s)")
    for kind, count in found.most_common():
        print(f"{count:6} {kind}: seed {first[kind][0]}: {first[kind][1]}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
