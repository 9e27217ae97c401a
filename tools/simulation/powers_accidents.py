"""Accidents of the network, the server, its clock and the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.connector.keys import key_beside
from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.connector.source.pending.poison_record import PoisonState
from spark_streams.operations.verify.history import Place, id_key
from tools.key_copies import Command, copies, make_again
from tools.simulation.at_peace import unnoticed
from tools.simulation.in_process.cluster import ClusterServer
from tools.simulation.in_process.refusals import CODES, Request
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.model import REMOVED_ITSELF, REMOVED_WITH_COMMIT, RETURNED, Entry
from tools.simulation.network import SILENCE, break_connection
from tools.simulation.options import DEAD
from tools.simulation.powers_clients import is_sought
from tools.simulation.reasons import Reason
from tools.simulation.setup import Step, pick
from tools.simulation.setup import part as share
from tools.simulation.sinks import OUT
from tools.simulation.spark import has
from tools.simulation.world import CONSUMER, GROUP, World, is_ours

# -- the network, keys that are not streams, the producers' clock ------------------------------------------------------


def cut(world: World, step: Step) -> None:
    """Break a connection before or after its bytes have arrived, or all connections if none is in use."""
    broken = (
        [connection for connection, _ in world.connections]
        if world.connection is None or step.how < 0.2
        else [world.connection]
    )
    for connection in broken:
        break_connection(connection)
    world.away |= bool(broken)


def away(world: World, step: Step) -> None:
    """Server outage: all connections break, and the next few attempts to connect are refused."""
    world.break_connections()
    world.network.refused = 1 + int(step.amount * 6)


def part(world: World, step: Step) -> None:
    """The network parts driver and tasks from the server in one direction: what each open connection sends next does
    not arrive, or is executed and its reply does not arrive. Attempts to connect fail meanwhile."""
    world.network.parted = "requests" if step.how < 0.5 else "replies"
    world.away = True
    world.network.refused = 1 + int(step.amount * 6)


def slow(world: World, step: Step) -> None:
    """The next reply takes up to 20 seconds: longer than a connection may be silent, or than a lease lasts."""
    world.network.late = 20 * step.amount
    world.away |= world.network.late >= SILENCE


def hurry(world: World, step: Step) -> None:
    """The driver's thread works at another pace from now on (plan.Setup)."""
    world.pace = pick([-1, 0, 1, 2, 5], step.how)


def evict(world: World, step: Step) -> None:
    """Delete a key of the library, as an eviction or an operator may do."""
    pattern = dict(step.options).get("key", "rstream:*")
    keys = sorted(str(key) for key in world.client.scan_iter(pattern, count=1000))
    if keys:
        key = pick(keys, step.choice)
        world.tell(f"      {key}")
        kind = "evicted " + ":".join(key.split(":")[1:2])
        for _, fields in world.client.xrange(key) if kind in ("evicted retry", RETURNED) else ():
            waited = world.model.entries_of(fields["dl.stream"], [fields["dl.id"]])
            world.model.excuse(waited, Reason.RETRIES_DELETED)
        noted = world.letters.noted() if kind == "evicted notes" and world.query.takes_a_batch else set()
        world.client.delete(key)
        for _, place in noted - world.letters.noted() if noted else ():
            world.model.excuse([entry for entry in [world.model.entry_at(*place)] if entry], Reason.NOTES_DELETED)
        if kind == "evicted first":
            world.births.forget()
        elif kind == "evicted committed":
            world.set_back_in = world.query.runs
            _not_recognised(world)
        elif kind == "evicted redrive":
            world.letters.redrive_is_forgotten()
        elif kind == "evicted sink" and (key.endswith((":parts", ":carried")) or _has_lost_its_first_batch(world)):
            written = _in_sink(world)
            is_open = world.query.committed < len(world.query.offsets) - 1 or not key.endswith((":parts", ":carried"))
            within = [one for one in world.model.entries.values() if is_open and world.query.is_within_batch(one)]
            for entry in [*within, *_set_aside(world)]:
                if entry.n in written:
                    entry.repeat_reasons.add(Reason.MARKS_DELETED)
        for name in [*world.names(), OUT]:
            world.model.stream(name).suffers(kind)


def _has_lost_its_first_batch(world: World) -> bool:
    """Whether the sink has neither a record nor a ledger of the query, which has had one batch."""
    with unnoticed(world):
        keys = [str(key) for key in world.sink_client.scan_iter("rstream:sink:*", count=1000)]
    return len(world.query.offsets) == 1 and not any(key.endswith(f":{world.query.id}") for key in keys)


def wait(world: World, step: Step) -> None:
    """Nothing happens for a second, up to half a day; for a minute if queries on another machine renew their leases."""
    seconds = pick([1.0, 20.0, 60.0, 300.0, 3_600.0, 7_200.0, 43_200.0], step.how)
    world.network.pass_time(min(seconds, 60.0) if world.elsewhere.living else seconds)


def clock(world: World, step: Step) -> None:
    """Set the producers' clock back, or forward."""
    world.ms += int((step.how - 0.5) * 20_000)


# -- data are deleted, or restored from an older state -----------------------------------------------------------------


_LOST = "lost with the server's last writes"
_WITH_ITS_STREAM = ("vanished", "flushed")


@dataclass(frozen=True)
class Backup:
    """The server at one moment. keys: commands that restore its keys; alive: entries in streams; last: newest entry;
    copies: what had been made of its dead letters (Letters.copies)."""

    keys: list[Command]
    alive: frozenset[int]
    last: int
    copies: Mapping[tuple[str, Place], list[Entry | str]]


def vanish(world: World, step: Step) -> None:
    """DEL of a stream."""
    name = pick(world.names(), step.choice)
    if world.client.delete(name):
        _take_all(world, name, "vanished")
        offsets = world.query.offsets
        if "streamsPattern" in world.query.options and not (offsets and name in offsets[-1]["streams"]):
            world.model.excuse(world.model.entries_of(name), Reason.VANISHED_FIRST)
        world.model.stream(name).suffers("vanished")
        world.births.changed(name)


def flush(world: World, step: Step) -> None:
    """FLUSHALL: an empty server."""
    written = _in_sink(world)
    world.client.flushall()
    world.letters.set_back()
    _lost_by_the_sink(world, written)
    for name in world.names():
        _take_all(world, name, "flushed")
        world.model.stream(name).suffers("flushed")
        world.births.changed(name)
    world.model.stream(OUT).suffers("flushed")


def backup(world: World, step: Step) -> None:
    """Save the state of the server."""
    world.backup = _state(world)


def fail_over(world: World, step: Step, becomes: str = "promote") -> None:
    """From now on a replica gets nothing. After some ticks it becomes the master: the writes since now are lost.
    becomes: the power that makes it so."""
    world.replica = _state(world)
    world.ticks.arm(Step(becomes, 1 + int(30 * step.amount), *(step.choice, step.amount, step.how)))


def promote(world: World, step: Step) -> None:
    """The replica becomes the master. All connections break; some attempts to connect fail before it answers."""
    if world.replica is not None:
        away(world, step)
        _set_back(world, world.replica)
        world.replica = None


def leave_alone(world: World, step: Step) -> None:
    """The server has no replica any more, until an operator repairs that."""
    world.replicated = False


def lag(world: World, step: Step) -> None:
    """From now on a replica gets nothing. It becomes the master amid the work of the driver's background thread, and
    answers at once."""
    world.replica = _state(world)
    world.ticks.arm(replace(step, kind="promote_beside", delay=1 + int(40 * step.amount)), beside=True)


def promote_beside(world: World, step: Step) -> None:
    """The replica becomes the master, and no attempt to connect fails."""
    if world.replica is not None:
        world.break_connections()
        _set_back(world, world.replica)
        world.replica = None


def _state(world: World) -> Backup:
    keys = copies(world.raw, world.raw.scan_iter(count=1000))
    alive = frozenset(entry.n for entry in world.model.entries.values() if not entry.removed_by)
    return Backup(keys, alive, len(world.model.entries), world.letters.copies())


def restore(world: World, step: Step) -> None:
    """Restore the server from the last backup: its last writes are lost. All connections break."""
    if world.backup is not None:
        world.break_connections()
        _set_back(world, world.backup)


def import_backup(world: World, step: Step) -> None:
    """Put one stream of the last backup, or it with all keys beside it and the dead letters, or all keys, into the
    running server: the connections stay."""
    if world.backup is None:
        return
    name = pick(world.names(), step.choice)
    if step.how < 0.25:
        _set_back(world, _with_keys_of(world, [name], lambda key: key == name.encode()))
    elif step.how < 0.5:
        _set_back(world, _with_keys_of(world, [name], lambda key: name.encode() in key or key == DEAD.encode()))
    else:
        _set_back(world, world.backup)


def restore_node(world: World, step: Step) -> None:
    """A node of the cluster fails over to a replica that has the state of the last backup."""
    if world.backup is not None and isinstance(world.server, ClusterServer):
        node_of, lost = world.server.slots.node_of, int(step.how < 0.5)
        names = [name for name in world.names() if node_of(name.encode()) == lost]
        world.break_connections()
        _set_back(world, _with_keys_of(world, names, lambda key: node_of(key) == lost))


def reshard(world: World, step: Step) -> None:
    """The slots of a stream, of the sink's stream or of the dead letters move to the other node of the cluster."""
    if isinstance(world.server, ClusterServer):
        world.server.move(pick([*world.names(), OUT, DEAD], step.choice))


def _with_keys_of(world: World, names: Sequence[str], is_put_back: Callable[[bytes], bool]) -> Backup:
    """Return the present state of the server, with these keys of some streams as they are in the last backup."""
    now, then = _state(world), world.backup
    assert then is not None
    own = {entry.n for name in names for entry in world.model.entries_of(name)}
    keys = [*(one for one in now.keys if not is_put_back(one[1])), *(one for one in then.keys if is_put_back(one[1]))]
    return Backup(keys, (now.alive - own) | (then.alive & own), then.last, then.copies)


def _set_back(world: World, to: Backup) -> None:
    written, record, closed, missed = _in_sink(world), _record(world), _closed(world), _noted_as_missing(world)
    world.set_back_in = world.query.runs
    aside = _set_aside(world)
    world.letters.settle_those_of_earlier_batches()
    noted = world.letters.noted()
    world.client.flushall()
    make_again(world.raw, to.keys)
    lost = {name for name, *_ in missed - _noted_as_missing(world)}
    world.model.excuse(_found_missing(world, to, lost), Reason.NOTES_LOST)
    world.letters.set_back(to.copies)
    world.letters.lost_notes(noted)
    _lost_by_the_sink(world, written)
    rows = written | _in_sink(world)  # the newer state may have rows, too, that the older one lacked
    is_other_record = _record(world) != record
    is_committed = world.query.committed == len(world.query.offsets) - 1
    may_be_cut = world.query.was_limited and not is_committed and _closed(world) != closed
    for entry in world.model.entries.values():
        if entry.n in to.alive:
            if entry.removed_by in _WITH_ITS_STREAM:
                entry.repeat_reasons.add(Reason.STREAM_RESTORED)
            # Documented: a lenient query has gone on below what an older state lacked, and now a newer one is restored.
            if entry.removed_by == _LOST and entry.n in rows and entry.key > id_key(world.query.logged(entry.stream)):
                entry.repeat_reasons.add(Reason.NEWER_STATE)
            entry.removed_by = ""
        else:
            entry.removed_by = entry.removed_by or _LOST
            if entry.n > to.last and entry.key > id_key(world.query.logged(entry.stream)):
                entry.excuses.add(Reason.LOST_BY_SERVER)
    for name in world.names():
        for entry_id, consumer in world.see(name).pending.items():
            if not is_ours(consumer):  # pending for others again
                again = world.model.entries_of(name, [entry_id])
                world.model.deliver_to_other(again, consumer)
                for entry in again:
                    entry.repeat_reasons.add(Reason.PENDING_FOR_OTHERS)
        world.model.stream(name).suffers("server set back")
        seen = world.see(name)
        ours = set(seen.ours())
        # Documented: a lone query whose account is unknown, or whose restored group was sought, goes on at the group.
        goes_to_group = world.query.is_account_unknown(name) or is_sought(world, [name])
        is_shared = any(not is_ours(consumer) for consumer in seen.consumers)
        with unnoticed(world):
            has_mark = world.client.get(committed_key(name, GROUP, CONSUMER)) is not None
        for entry in world.model.entries_of(name):
            if seen.position is None:
                entry.repeat_reasons.add(Reason.BEFORE_ITS_GROUP)
            elif goes_to_group and (entry.key > id_key(seen.position) or entry.id in ours):
                entry.repeat_reasons.add(Reason.AFTER_SEEK)
            elif entry.id in ours and not has_mark:
                entry.repeat_reasons.add(Reason.MARK_DELETED)
            elif entry.id in ours and world.query.offsets and name in world.query.offsets[-1].get("left", ()):
                # Documented: of what is pending, the query does not know what a batch has read.
                entry.repeat_reasons.add(Reason.PENDING_BESIDE)
            if may_be_cut and entry.n in written and world.query.is_within_batch(entry):
                entry.repeat_reasons.add(Reason.CUT_AND_WRITTEN)
            if entry.id in ours or (seen.position is not None and entry.key > id_key(seen.position)):
                world.model.stream(name).back.add(entry.n)
                world.query.back.get(name, set()).discard(entry.n)
                entry.late_reasons.add(Reason.PLANNED_AGAIN)
            if entry.id not in ours:
                world.model.excuse_only_pending([entry])
                if entry in aside:
                    world.model.excuse([entry], Reason.NOT_PENDING_ANY_MORE)
            elif world.query.has_record and is_other_record:
                entry.repeat_reasons.add(Reason.RECORD_OLDER)
                is_below = entry.key <= id_key(world.query.logged(name))
                if is_below and is_committed and entry.n not in written:  # documented: its batch had set it aside
                    entry.excuses.add(Reason.SET_ASIDE_SINCE)
        if is_shared:
            world.model.goes_back(name)
        world.births.changed(name)
    world.model.stream(OUT).suffers("server set back")


def _record(world: World) -> dict[bytes, bytes]:
    """Return the record of failed batches (maxDeliveries)."""
    return {key: world.raw.get(key) for key in world.raw.scan_iter("rstream:attempts:*", count=1000)}


def _closed(world: World) -> dict[str, str]:
    """Return the sink's record: which batch is closed."""
    with unnoticed(world):
        found: dict[str, str] = world.sink_client.hgetall(f"rstream:sink:{world.query.id}")
    return found


def _set_aside(world: World) -> list[Entry]:
    """Return the entries of pieces of batches that were cut. It asks for no other keys: that may let them expire."""
    names = {offset["record"] for offset in world.query.offsets if offset.get("record")}
    with unnoticed(world):
        texts = [world.raw.get(key_beside(name, "attempts", GROUP, CONSUMER)) for name in sorted(names)]
    records = [PoisonState.from_json(text) for text in texts if text is not None]
    pieces = [piece for record in records for piece in [*record.pieces.values(), *record.away.values()]]
    parts = [(name, texts) for piece in pieces for name, texts in piece.ranges().items()]
    return [entry for name, texts in parts for entry in world.model.entries_of(name) if has(texts, entry)]


def _noted_as_missing(world: World) -> set[tuple[str, bytes, bytes]]:
    """Return what the tasks have noted of missing entries, with its stream."""
    with unnoticed(world):
        notes = {name: world.raw.hgetall(key_beside(name, "missing", GROUP, CONSUMER)) for name in world.names()}
    return {(name, *note) for name, of_stream in notes.items() for note in of_stream.items()}


def _found_missing(world: World, to: Backup, lost: set[str]) -> list[Entry]:
    """Return entries of the last batch that its tasks missed, and that the restored server has again, or of whose
    stream it has lost notes (documented).

    Only the notes of the tasks report them, unless the tasks failed (without noAck and strict).
    """
    query = world.query
    if not (query.is_lenient or "noAck" in query.options):
        return []
    begin = query.begin_of(len(query.offsets) - 1)
    return [
        entry
        for entry in world.model.entries.values()
        if entry.removed_by
        and (entry.n in to.alive or (entry.looked_for and entry.stream in lost))
        and id_key(begin.get(entry.stream, "0-0")) < entry.key <= id_key(query.logged(entry.stream))
    ]


def rollback(world: World, step: Step) -> None:
    """Use an older copy of the checkpoint. The recorder sink is set back with it."""
    query = world.query
    if len(query.offsets) < 2 or is_sought(world, world.names()):  # it would pass over entries that it has not read
        return
    query.newest = (list(query.offsets), query.committed)
    remaining_batches = len(query.offsets) - share(len(query.offsets) - 1, step.amount)
    shared, written = {name for name in world.names() if query.is_account_unknown(name)}, _in_sink(world)
    old = [entry for entry in query.entries_since(remaining_batches, only_old=True) if entry.shuffled]
    for entry in _set_aside(world) + old:
        entry.lenient_reasons.add(Reason.OF_A_LATER_BATCH)
    _are_read_again(world, remaining_batches - 1)
    world.letters.come_again(query.entries_since(remaining_batches - 1), Reason.A_LETTER_BEFORE)
    query.set_back(remaining_batches, remaining_batches - 1 - (step.how < 0.3))
    _take_own(world)
    for entry in (world.model.entries[n] for n in written - _in_sink(world)):
        if not query.is_older_copy(entry.stream):  # documented: its mark was deleted, or not written yet
            world.model.stream(entry.stream).skipped.add(entry.n)
            if entry.stream in shared:
                world.model.is_shared(entry.stream)
        comes_again = query.committed < len(query.offsets) - 1 and query.is_within_batch(entry)
        if entry.key <= id_key(query.logged(entry.stream)) and not comes_again:
            entry.excuses.add(Reason.LEFT_AND_READ)  # documented
    _not_recognised(world)
    _looks_new(world)
    _suffers(world, "checkpoint set back")
    world.model.stream(OUT).suffers("checkpoint set back")


def _looks_new(world: World) -> None:
    """Documented: a restored stream whose group was destroyed since, and that lacks what the checkpoint knows, is read
    as a new one."""
    for name in world.names():
        with unnoticed(world):
            head, seen = world.head(name), world.see(name)
        is_other = head is not None and world.query.looks_other(name, *head)
        if is_other and seen.position is None and "server set back" in world.model.stream(name).ever:
            for entry in world.model.alive(name):
                entry.repeat_reasons.add(Reason.BEFORE_ITS_GROUP)


def _not_recognised(world: World) -> None:
    """Documented: without the mark of a stream, a copy of the checkpoint from before its first batch passes for new."""
    written = _in_sink(world)
    for name in world.names():
        with unnoticed(world):
            has_mark = world.client.exists(committed_key(name, GROUP, CONSUMER))
        if not (has_mark or world.query.has_read(name)):
            read = [entry for entry in world.query.read_by_newest(name) if entry.n not in written]
            world.model.excuse(read, Reason.OLDER_UNMARKED)


def lose_commits(world: World, step: Step) -> None:
    """Delete the last files of the commit log: Spark runs the last batch again."""
    query = world.query
    if query.committed >= 0:
        query.die()
        query.committed -= share(query.committed + 1, step.amount)
        _are_read_again(world, query.committed + 1)
        _take_own(world)
        _suffers(world, "commits lost")


def _take_own(world: World) -> None:
    """What the query has removed itself (onCommit), this checkpoint no longer knows to be read."""
    query = world.query
    for name in world.names() if query.has_removed else ():
        present = {*world.see(name).ids}
        for entry in [entry for entry in world.model.alive(name) if entry.id not in present]:
            is_read_again = query.committed < len(query.offsets) - 1 and query.is_within_batch(entry)
            world.model.take([entry], REMOVED_WITH_COMMIT if is_read_again else REMOVED_ITSELF)
            if query.is_lenient and {*_WITH_ITS_STREAM} & world.model.stream(name).ever:
                entry.excuses.add(Reason.OF_A_LATER_BATCH)
    if query.is_lenient:
        world.operator.goes_on_without_commit()


def _are_read_again(world: World, number: int) -> None:
    """Record that the batches from this one on are planned or read again. Documented: what is deleted before may be
    counted although its row is written, or not counted."""
    for entry in world.query.entries_since(number):
        entry.lenient_reasons.add(Reason.MISSED_BY_ONE)
        entry.late_reasons.add(Reason.PLANNED_AGAIN)


def _in_sink(world: World) -> set[int]:
    return {row.value[1] for row in world.sink.rows()}


def _lost_by_the_sink(world: World, before: set[int]) -> None:
    """Excuse rows that were lost with the server, if the sink is on it."""
    for n in before - _in_sink(world):
        world.model.entries[n].excuses.add(Reason.ROW_LOST)


def _take_all(world: World, name: str, cause: str) -> None:
    """Remove a stream with its group. Before the first checkpoint nothing else records that the query read it."""
    world.model.take(world.model.alive(name), cause)
    for entry in world.model.entries_of(name):
        if entry.removed_by and not entry.settled:
            entry.removed_by = cause  # the first cause is no longer recognizable
    if not world.query.offsets:
        world.model.excuse(world.model.entries_of(name), Reason.EARLY)


def _suffers(world: World, cause: str) -> None:
    for name in world.names():
        if name in world.model.streams:
            world.model.stream(name).suffers(cause)


# -- the server's clock: alone, or because another machine becomes the server ------------------------------------------


# Part of all moves that are so far at most → seconds.
_SECONDS: Mapping[float, float] = {0.48: 2.0, 0.96: 60.0, 1.0: 3600.0}


def clock_back(world: World, step: Step) -> None:
    """The server's clock is set back."""
    _move(world, -_seconds(step))


def clock_ahead(world: World, step: Step) -> None:
    """The server's clock is set ahead: what expires within that time is gone, sessions of leases among it."""
    _move(world, _seconds(step))


def fail_over_apart(world: World, step: Step) -> None:
    """A failover to a machine with another clock."""
    fail_over(world, step, becomes="promote_apart")


def promote_apart(world: World, step: Step) -> None:
    """The replica becomes the master. Its clock is behind in two of three cases."""
    if world.replica is not None:
        promote(world, step)
        _move(world, _either_way(step))


def restore_apart(world: World, step: Step) -> None:
    """Restore the last backup on a machine with another clock."""
    if world.backup is not None:
        restore(world, step)
        _move(world, _either_way(step))


def _seconds(step: Step) -> float:
    return next(seconds for part, seconds in _SECONDS.items() if step.amount < part)


def _either_way(step: Step) -> float:
    return _seconds(step) if step.choice > 2 / 3 else -_seconds(step)


def _move(world: World, seconds: float) -> None:
    assert isinstance(world.server, ProcessServer), "this server's clock does not move"
    world.tell(f"      the server's clock: {seconds:+g} s")
    world.server.core.clock.move_server(seconds)
    if seconds < 0:
        _excuse_what_was_handed_over(world)


def _excuse_what_was_handed_over(world: World) -> None:
    """Documented: handed-over entries within the range of a batch may be acknowledged unread then."""
    for name in world.names():
        seen = world.see(name)
        end = seen.position if world.query.takes_a_batch else world.query.logged(name)
        for entry in world.model.entries_of(name, seen.ours()):
            if entry.shuffled and end is not None and entry.key <= id_key(end):
                world.model.excuse([entry], Reason.CLOCK_BACK)


# -- commands that the server refuses ----------------------------------------------------------------------------------


_ONCE = 0.6  # share of the refusals that meet one command
_MANY = 60  # commands: longer than an operation is tried


def refuse(world: World, step: Step) -> None:
    """From one of the next commands on, refuse what a code applies to: one command, or up to sixty. choice: the code;
    amount: which command is the first; how: how many. Only a server in this process can be told so."""
    if not isinstance(world.server, ProcessServer):
        return
    refusals = world.server.core.refusals
    passing = int(40 * step.amount**2)
    refused = 1 if step.how < _ONCE else 2 + int(_MANY * ((step.how - _ONCE) / (1 - _ONCE)) ** 2)

    def is_met(request: Request) -> bool:
        nonlocal passing, refused
        passing -= 1
        if passing >= 0:
            return False
        refused -= 1
        world.away = True
        if request.place == "within":
            world.letters.note_is_refused(*(word.decode("utf-8", "replace") for word in request.words))
        world.tell(f"      refused {request.place}: {b' '.join(request.words)[:90].decode('utf-8', 'replace')}")
        if refused == 0:
            refusals.end()
        return True

    code = pick([*CODES], step.choice)
    world.tell(f"      {code}: {refused} commands, after {passing}")
    refusals.begin(code, is_met)
