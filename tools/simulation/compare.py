"""Random states of a stream, its group, the commit mark and a checkpoint, given to the pure comparison. No server, so
millions of states.

    python -m tools.simulation.compare --states 5000000 --seed 1

Actions change a small world as producers, operators, other consumers and failing servers do. For each entry the world
knows whether the query has committed it, and whether others have received it. So it knows what must be true after the
comparison and its repairs:

- each entry that the query has not committed is delivered, was received by others, or a finding reports a loss
- an entry that the query has committed is delivered again only after a finding or by an operator
- a query that is alone reports as many lost entries as have left the stream unread
- the repairs come to an end
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark, without_pending_list
from spark_streams.connector.source.group.compare import (
    Repair,
    at_end,
    compare,
    is_proved_below,
    moved_since_checkpoint,
    repaired,
)
from spark_streams.connector.source.group.recovery import Finding, GroupUse, Kind
from spark_streams.connector.source.group.snapshot import GroupState, OtherConsumer, PendingAbove, StreamSnapshot
from spark_streams.connector.source.offset import StreamOffset
from spark_streams.connector.source.trigger.bookmark import snapshot_at_query
from spark_streams.connector.wire.xinfo import StreamState

FIRST = 1_000_000  # IDs of a stream that is created again are lower, or continue
NO_ACK_TOKEN = without_pending_list("5f1c9a0b-")  # of all batches of a checkpoint
Entry = tuple[int, int]  # number of the stream among those of this name, and the entry's ID
_MOST_REPAIRS = 20


def id_of(number: int) -> StreamId:
    """Return the ID of this number; 0: before the first entry."""
    return MIN_ID if number == 0 else StreamId(number, 0)


@dataclass
class Group:
    """State of the group. read: entries-read; None: unknown to the server. has_consumer: our consumer exists. pending,
    theirs: entries that are pending for us, and for others. others: other consumers exist."""

    position: int
    read: int | None
    has_consumer: bool = False
    pending: set[Entry] = field(default_factory=set)
    theirs: set[Entry] = field(default_factory=set)
    others: bool = False

    def copy(self) -> Group:
        """Return a copy that shares nothing."""
        return replace(self, pending={*self.pending}, theirs={*self.theirs})


@dataclass
class Server:
    """State of the server. life: number of the stream among those of its name. removed: trimmed and deleted entries;
    deleted: IDs of deleted entries."""

    life: int = 1
    exists: bool = True
    last: int = FIRST
    added: int = 0
    entries: list[int] = field(default_factory=list)
    removed: set[Entry] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    group: Group | None = None
    mark: Mark | None = None

    def copy(self) -> Server:
        """Return a copy that shares nothing."""
        group = None if self.group is None else self.group.copy()
        entries, removed, deleted = [*self.entries], {*self.removed}, {*self.deleted}
        return replace(self, entries=entries, removed=removed, deleted=deleted, group=group)


@dataclass(frozen=True)
class Checkpoint:
    """State of the checkpoint. done: entries that its batches have committed."""

    at: StreamOffset
    done: frozenset[Entry] = frozenset()


class World:
    """One query of one stream. received: entries that other consumers received at any time; ever_removed: removed
    entries, which a restored server may have again; actions: names of the actions so far."""

    def __init__(self, chance: random.Random, is_bookmark: bool) -> None:
        self.chance = chance
        self.is_bookmark = is_bookmark
        self.server = Server()
        self.received: set[Entry] = set()
        self.ever_removed: set[Entry] = set()
        self.ever_done: set[Entry] = set()
        self.actions: list[str] = []
        self.lives = 1
        self.newest = FIRST
        self.server.group = Group(0, 0, has_consumer=True)
        self.checkpoint = Checkpoint(StreamOffset(MIN_ID, 0, "0", 0, 0))
        self.server.mark = Mark(MIN_ID, 0, "0")
        self.add()
        self.commit()
        self.saved = self.server.copy(), self.checkpoint

    # -- daily actions -------------------------------------------------------------------------------------------

    def add(self) -> None:
        """A producer adds entries."""
        if not self.server.exists:
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
        """The query reserves entries, and is killed before its offset is logged."""
        server, group = self.server, self.server.group
        if group is None or not group.has_consumer or self.is_bookmark or self.is_odd():
            return
        new = [number for number in server.entries if number > group.position][: self.chance.randint(1, 4)]
        if new:
            group.pending |= {(server.life, number) for number in new}
            self._advance(group, new[-1])

    def commit(self) -> None:
        """Commit a batch of pending and new entries, and acknowledge it. Only if nothing is wrong."""
        server, group = self.server, self.server.group
        if group is None or not group.has_consumer or self.is_odd():
            return
        self.reserve()
        at = self.checkpoint.at
        if self.is_bookmark:
            new = [number for number in server.entries if id_of(number) > at.position][: self.chance.randint(1, 4)]
            batch = {(server.life, number) for number in new}
            position = max(new, default=at.position.ms)
        else:
            batch, position = group.pending, group.position
            group.pending = set()
        token = NO_ACK_TOKEN if self.is_bookmark else f"{self.chance.getrandbits(32):08x}"
        read = None if group.others or at.read is None else len(self._up_to(position))
        missed = at.missed if read is None or group.read is None or self.is_bookmark else read - group.read
        at = StreamOffset(id_of(position), at.number + 1, token, read, server.added, missed)
        server.mark = Mark(at.position, at.number, token)
        self.checkpoint = Checkpoint(at, self.checkpoint.done | batch)
        self.ever_done |= batch

    def is_odd(self) -> bool:
        """Whether group and checkpoint may differ: a query would not go on without a comparison."""
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
        self.saved = self.server.copy(), self.checkpoint

    def restore_server(self) -> None:
        """Restore the server from an older state."""
        self.server = self.saved[0].copy()

    def restore_checkpoint(self) -> None:
        """Use an older copy of the checkpoint."""
        self.checkpoint = self.saved[1]

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

    def set_group(self) -> None:
        """XGROUP SETID."""
        if self.server.group is not None:
            self.server.group.position, self.server.group.read = self._anywhere(), None

    def seek(self) -> None:
        """rstream groups seek."""
        self.set_group()
        group, mark = self.server.group, self.server.mark
        if group is not None and mark is not None:
            self.server.mark = Mark.of_seek(id_of(group.position), mark)

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
        self.received |= {(self.server.life, number) for number in new}
        group.others = True
        self._advance(group, new[-1])

    def others_leave(self) -> None:
        """Acknowledge all entries of the other consumers, and delete them."""
        if self.server.group is not None:
            self.server.group.others, self.server.group.theirs = False, set()

    def _anywhere(self) -> int:
        return self.chance.choice([0, self.checkpoint.at.position.ms, *self.server.entries, self.server.last])

    # -- what the driver sees and does ---------------------------------------------------------------------------

    def snapshot(self) -> StreamSnapshot:
        """Return the state as `fetch_snapshots` reads it."""
        server, group = self.server, self.server.group
        if not server.exists:
            return StreamSnapshot(StreamState(MIN_ID, 0, 0, None, exists=False), None, server.mark)
        first = id_of(server.entries[0]) if server.entries else None
        top, deleted = id_of(max(server.entries, default=0)), id_of(max(server.deleted, default=0))
        head = StreamState(id_of(server.last), len(server.entries), server.added, first, True, top, deleted)
        state = None
        if group is not None:
            others = (OtherConsumer("bob", len(group.theirs)),) if group.others else ()
            pending = len(group.pending)
            state = GroupState(id_of(group.position), group.read, None, pending, group.has_consumer, others)
        return StreamSnapshot(head, state, server.mark)

    def look_of(self, at: StreamOffset) -> StreamSnapshot:
        """Look at the server as a query at this position does."""
        return snapshot_at_query(at, self.snapshot()) if self.is_bookmark else self.snapshot()

    def above(self, at: StreamOffset) -> PendingAbove:
        """Return what is pending for the query above its position, up to the group's."""
        group = self.server.group
        if group is None or self.is_bookmark:
            return PendingAbove()
        ids = [number for _, number in group.pending if at.position < id_of(number) <= id_of(group.position)]
        return PendingAbove(len(ids), id_of(max(ids, default=0)))

    def has_entry(self, position: StreamId) -> bool:
        """Whether the stream holds this entry."""
        return position.ms in self.server.entries

    def carry_out(self, repair: Repair) -> None:
        """Set group, consumer and mark as `observe.carry_out` does."""
        server, at = self.server, repair.at
        if not server.exists and repair.makes_stream:
            server.exists, server.last = True, 0
        if repair.command == "CREATE":
            server.group = Group(at.position.ms, at.read)
        assert server.group is not None or not repair.sets_mark
        if server.group is not None:
            if repair.command:
                server.group.position, server.group.read = at.position.ms, at.read
            server.group.has_consumer |= repair.sets_mark
        if repair.sets_mark:
            server.mark = Mark(at.position, at.number, at.token)

    def delivers(self, at: StreamOffset) -> set[Entry]:
        """Return the entries that the query is going to read."""
        server, group = self.server, self.server.group
        position = at.position if self.is_bookmark or group is None else id_of(group.position)
        pending = set() if group is None else group.pending
        return {(server.life, number) for number in server.entries if id_of(number) > position} | pending


# After these actions, a query does not go on without a comparison.
_ODD = {
    *("restore_server", "restore_checkpoint", "drop_stream", "replace_stream", "destroy_group", "create_group"),
    *("set_group", "seek", "delete_consumer", "others_read"),
}
_DAILY = ("add", "reserve", "commit", "add", "commit", "trim", "delete", "save", "others_leave")
_RARE = (*sorted(_ODD), "lose_mark")


def world_of(seed: int) -> World:
    """Return the world of a seed, after some actions."""
    chance = random.Random(seed)
    world = World(chance, is_bookmark=chance.random() < 0.25)
    for _ in range(chance.randint(1, 9)):
        action = chance.choice(_DAILY if chance.random() < 0.6 else _RARE)
        if action == "others_read" and world.is_bookmark:
            continue
        world.actions.append(action)
        getattr(world, action)()
    return world


@dataclass
class Outcome:
    """What the comparison and its repairs lead to. stops: the finding that stops a strict query; is_moved: an operator
    has moved the group with `rstream groups seek`; ends: whether nothing more is found."""

    at: StreamOffset
    findings: list[Finding] = field(default_factory=list)
    stops: Finding | None = None
    is_moved: bool = False
    ends: bool = True

    @property
    def lost(self) -> int:
        """Number of lost entries that are reported."""
        return sum(finding.lost for finding in self.findings)


def outcome_of(world: World, lenient: bool, logged: StreamOffset, reported_deletion: StreamId = MIN_ID) -> Outcome:
    """Compare and repair, as a trigger does, until nothing is found or a strict query stops."""
    outcome = Outcome(logged)
    for _ in range(_MOST_REPAIRS):
        snapshot = world.look_of(outcome.at)
        moved = moved_since_checkpoint(outcome.at, snapshot)
        if moved is not None:
            world.carry_out(Repair(moved, creates_consumer=True))
            outcome = replace(outcome, at=moved, is_moved=True)
            snapshot = world.look_of(outcome.at)
        outcome.at = at_end(outcome.at, snapshot)
        finding = compare("s", outcome.at, snapshot, world.above(outcome.at))
        is_loss = finding is not None and finding.kind is Kind.ENTRIES_LOST
        is_reported = is_loss and reported_deletion == snapshot.head.deleted > MIN_ID
        if finding is None or is_reported:
            return outcome
        finding = _proved(world, finding, outcome.at, snapshot)
        outcome.findings.append(finding)
        if not lenient and not finding.is_harmless:
            return replace(outcome, stops=finding)
        repair = repaired(finding, outcome.at, snapshot, logged)
        world.carry_out(repair)
        outcome.at, reported_deletion = repair.at, max(reported_deletion, repair.reported_deletion)
    return replace(outcome, ends=False)


def _proved(world: World, finding: Finding, at: StreamOffset, snapshot: StreamSnapshot) -> Finding:
    """Return the finding as `Observer._proved` does."""
    if finding.kind is not Kind.GROUP_BELOW or finding.group_use is GroupUse.SHARED:
        return finding
    proved = is_proved_below(at, snapshot.head, world.has_entry(at.position))
    if proved is None:
        return replace(finding, kind=Kind.SERVER_RESTORED, lost=1, is_exact=False)
    return replace(finding, is_harmless=proved)


# -- what must be true ---------------------------------------------------------------------------------------------


def faults(seed: int) -> Iterator[str]:
    """Yield what is wrong in the world of a seed, strict and lenient."""
    for lenient in (False, True):
        world = world_of(seed)
        done, logged = world.checkpoint.done, world.checkpoint.at
        outcome = outcome_of(world, lenient, logged)
        kinds = "+".join(finding.kind.name for finding in outcome.findings) or "nothing"
        shown = f"{'lenient' if lenient else 'strict'}: {kinds} after {' '.join(world.actions)}"
        if not outcome.ends:
            yield f"no end: {shown}"
        elif not _ODD & set(world.actions):
            yield from (f"{fault}: {shown}" for fault in _miscounted(world, outcome, logged))
        elif outcome.stops is not None:
            if _ODD & set(world.actions) == {"seek"} and "lose_mark" not in world.actions and outcome.lost == 0:
                yield f"no seek: {shown}"
        else:
            yield from (f"{fault}: {shown}" for fault in _unseen(world, outcome, done))


def _miscounted(world: World, outcome: Outcome, logged: StreamOffset) -> Iterator[str]:
    """Yield what is wrong in a world in which nothing but reading, trimming and deleting has happened."""
    server, group = world.server, world.server.group
    assert group is not None
    missing = {entry for entry in server.removed if id_of(entry[1]) > logged.position} - group.pending
    if any(finding.kind is not Kind.ENTRIES_LOST for finding in outcome.findings):
        yield "false alarm"
    if outcome.lost > len(missing):
        yield f"{outcome.lost} lost of {len(missing)}"
    if outcome.stops is not None:
        return
    world.actions.append("others_leave")  # read to the end: then all of them are counted
    at = _read_to_end(world, outcome.at)
    total = outcome.lost + outcome_of(world, True, at).lost
    if total != len(missing):
        yield f"{total} lost of {len(missing)} at the end"


def _read_to_end(world: World, at: StreamOffset) -> StreamOffset:
    """Return the offset after the query has read all that is there."""
    server, group = world.server, world.server.group
    assert group is not None
    assert at.read is not None
    entries = len(world.delivers(at))
    position = max([group.position, at.position.ms, *server.entries])
    group.position, group.pending, group.read = position, set(), None
    return at._replace(position=id_of(position), read=at.read + entries, number=at.number + 1, added=server.added)


def _unseen(world: World, outcome: Outcome, done: frozenset[Entry]) -> Iterator[str]:
    """Yield what no finding has reported. The exceptions are in docs/reference/unnoticed.md."""
    actions, server = set(world.actions), world.server
    present = {(server.life, number) for number in server.entries}
    delivers = world.delivers(outcome.at)
    is_reported = outcome.lost > 0 or outcome.is_moved
    is_new = any(finding.kind in (Kind.STREAM_MISSING, Kind.STREAM_REPLACED) for finding in outcome.findings)
    silent = present - world.ever_done - world.received - world.ever_removed - delivers
    if silent and not is_reported and not is_new and not _may_be_read_by_others(actions):
        yield "silent"
    twice = delivers & present & done
    if twice and not outcome.findings and not outcome.is_moved and not _is_hidden(actions):
        yield "twice"
    if server.group is None or not server.exists:
        yield "no group"
    lives = {life for life, _ in done}
    vanished = {entry for entry in done if entry[0] == server.life} - present - server.removed
    if vanished and not is_reported and not is_new and len(lives) == 1 and not _is_moved_since(world.actions):
        yield "vanished in silence"
    is_older = {"lose_mark", "restore_checkpoint"} <= actions  # what the newer checkpoint has acknowledged
    if outcome.lost and not is_older and not (actions & _LOSES) and not _may_be_read_by_others(actions):
        yield "false loss"


_LOSES = {"trim", "delete", "restore_server", "drop_stream", "replace_stream", "delete_consumer"}


def _may_be_read_by_others(actions: set[str]) -> bool:
    """Whether others may have read the entries, as far as the query can know."""
    return "others_read" in actions and bool(
        {"set_group", "create_group", "delete_consumer", "restore_checkpoint", "seek"} & actions
    )


def _is_hidden(actions: set[str]) -> bool:
    """Whether later changes hide that a server was restored or a stream created again."""
    return bool({"restore_server", "drop_stream", "replace_stream"} & actions)


def _is_moved_since(actions: list[str]) -> bool:
    """Whether changes after a restore hide it."""
    if "restore_server" not in actions:
        return False
    after = actions[actions.index("restore_server") + 1 :]
    return bool(
        {"add", "set_group", "seek", "create_group", "destroy_group", "others_read", "trim", "delete"} & {*after}
    )


def main() -> int:
    """Print the faults by kind, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser("python -m tools.simulation.compare", description=__doc__)
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
