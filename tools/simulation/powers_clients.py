"""What clients of the server do: producers, the other consumers of the group, a second group, and operators."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.deadletter.transform import FieldChanges
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.operations.verify.history import id_key
from tools.simulation.journeys import Asker
from tools.simulation.letters import CHANGED
from tools.simulation.mixes import is_behind
from tools.simulation.model import OTHERS, Entry
from tools.simulation.options import DEAD
from tools.simulation.reasons import Reason
from tools.simulation.setup import Step, part, pick
from tools.simulation.verdict import AUDIENCE, check_removals
from tools.simulation.world import CONSUMER, GROUP, Seen, World, is_ours

# -- what is under way when an event happens ---------------------------------------------------------------------------


def amid_a_trigger(world: World) -> bool:
    """Whether the query takes a batch, or reserves one ahead."""
    return world.query.takes_a_batch or bool(world.helpers)


def is_sought(world: World, names: Sequence[str]) -> bool:
    """Whether the operator has set the group of one of these streams for this checkpoint (rstream groups seek), and no
    run has followed yet."""
    keys = [committed_key(name, GROUP, CONSUMER) for name in names]
    marks = [Mark.parse(value) for value in world.raw.mget(keys)] if keys else []
    return any(mark is not None and mark.is_seek for mark in marks)


# -- producers ---------------------------------------------------------------------------------------------------------


def add(world: World, step: Step) -> None:
    """Add one to eight entries."""
    world.add(pick(world.names(), step.choice), 1 + int(step.amount * 8))


def trim(world: World, step: Step) -> None:
    """XTRIM a part of a stream from its head, or all of it."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if not seen.ids:
        return
    count = part(len(seen.ids), step.amount)
    if step.how < 0.5 or count == len(seen.ids):
        world.client.xtrim(name, maxlen=len(seen.ids) - count, approximate=False)
    else:
        world.client.xtrim(name, minid=seen.ids[count], approximate=False)
    _take(world, name, seen.ids[:count], "trimmed")


def delete(world: World, step: Step) -> None:
    """XDEL a few adjacent entries: of all entries, or of the unread, pending or read ones."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    ids = list(seen.ids)
    if seen.position is not None and step.how >= 0.25:
        position = id_key(seen.position)
        if step.how < 0.5:
            ids = [entry_id for entry_id in ids if id_key(entry_id) > position]
        elif step.how < 0.75:
            ids = [entry_id for entry_id in ids if entry_id in seen.pending]
        else:
            ids = [entry_id for entry_id in ids if id_key(entry_id) <= position and entry_id not in seen.pending]
    if not ids:
        return
    first = int(step.amount * len(ids))
    neighbours = ids[first : first + 1 + int(step.how * 40) % 4]
    if neighbours:
        world.client.xdel(name, *neighbours)
        _take(world, name, neighbours, "deleted")


def _take(world: World, name: str, ids: Sequence[str], cause: str) -> None:
    """Record a removal. Documented: from a shared group amid a trigger, the query may read past the entries before it
    looks again."""
    entries, seen = world.model.entries_of(name, ids), world.see(name)
    world.model.take(entries, cause)
    is_shared = any(not is_ours(consumer) for consumer in seen.consumers)
    stream = world.model.stream(name)
    if is_shared and not stream.in_checkpoint and seen.position is not None:
        stream.removed_at_first |= any(entry.key > id_key(seen.position) for entry in entries)
    if world.query.takes_a_batch and is_shared and seen.position is not None:
        unread = [entry for entry in entries if entry.key > id_key(seen.position)]
        world.model.excuse(unread, Reason.REMOVED_AMID)
    if seen.exists and (seen.position is None or "server set back" in world.model.stream(name).causes):
        head = world.client.xinfo_stream(name)
        if world.query.looks_known(name, head["entries-added"] - head["length"], seen.position is not None):
            removed = [entry for entry in world.model.entries_of(name) if entry.removed_by in ("trimmed", "deleted")]
            world.model.excuse(removed, Reason.LOOKS_KNOWN if seen.position is None else Reason.AS_MANY_ADDED)


# -- other consumers of the group --------------------------------------------------------------------------------------


NAMES = ["bob", "eve"]
OTHER_QUERY = "0123456789ab-0123456789ab"  # name of its last batch
_LONG_AGO = 100_000_000  # milliseconds, more than options.CLAIM_IDLE


def read(world: World, step: Step) -> None:
    """XREADGROUP > for one to six entries."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    was = world.see(name).position
    if was is None:
        return
    replies = world.client.xreadgroup(GROUP, consumer, {name: ">"}, count=1 + int(step.amount * 6))
    world.model.stream(name).suffers("others read")
    world.model.is_shared(name)
    now = world.see(name).position
    assert now is not None
    # Documented: the server does not say whose entries were removed.
    passed = [entry for entry in world.model.entries_of(name) if id_key(was) < entry.key <= id_key(now)]
    world.model.excuse([entry for entry in passed if entry.removed_by], Reason.READ_PAST)
    for _, entries in replies:
        world.model.deliver_to_other(world.model.entries_of(name, [str(entry_id) for entry_id, _ in entries]), consumer)


def acknowledge(world: World, step: Step) -> None:
    """XACK some entries of another consumer."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    mine = _held(world.see(name), consumer)
    if mine:
        ids = mine[: part(len(mine), step.amount)]
        world.client.xack(name, GROUP, *ids)
        world.model.excuse(world.model.entries_of(name, ids), Reason.THEIRS_AND_DONE)


def die(world: World, step: Step) -> None:
    """Make all entries of another consumer idle, as if it had died long ago."""
    consumer = pick(NAMES, step.how)
    for name in world.names():
        seen = world.see(name)
        mine = [entry_id for entry_id in _held(seen, consumer) if entry_id in seen.ids]
        if mine:
            world.client.xclaim(name, GROUP, consumer, 0, mine, idle=_LONG_AGO, justid=True)


def enlist(world: World, step: Step) -> None:
    """Let another consumer be one of a query: it has a commit mark."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    if consumer in seen.consumers:
        world.client.set(committed_key(name, GROUP, consumer), f"{seen.position} 1.{OTHER_QUERY}")


def release(world: World, step: Step) -> None:
    """XNACK some entries of another consumer: the query must read them, with claimIdle or without."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    mine = [entry_id for entry_id in _held(seen, consumer) if entry_id in seen.ids]
    ids = mine[: part(len(mine), step.amount)]
    if ids and world.supports_xnack:
        mode = pick(["SILENT", "FAIL"], (step.how * 10) % 1)
        world.client.execute_command("XNACK", name, GROUP, mode, "IDS", len(ids), *ids)
        released = world.model.entries_of(name, ids)
        world.model.give_back(released)
        for entry in released:
            entry.only_pending = True


def leave(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER: its pending entries are dropped."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    if consumer in seen.consumers:
        world.client.xgroup_delconsumer(name, GROUP, consumer)
        world.model.excuse(world.model.entries_of(name, _held(seen, consumer)), Reason.THEIRS_AND_LEFT)


def _held(seen: Seen, consumer: str) -> list[str]:
    assert not is_ours(consumer)
    return [entry_id for entry_id, owner in seen.pending.items() if owner == consumer]


# -- operators: entries and the group ----------------------------------------------------------------------------------


def give(world: World, step: Step) -> None:
    """XCLAIM another consumer's entries for the query's consumer, at any position of the checkpoint."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    theirs = [entry_id for entry_id, owner in seen.pending.items() if not is_ours(owner) and entry_id in seen.ids]
    if theirs:
        first = int(step.how * len(theirs))
        ids = theirs[first : first + part(len(theirs), step.amount)]
        time.sleep(0.001)  # of the plan's clock: no tasks read a batch in the millisecond in which it was made
        world.client.xclaim(name, GROUP, CONSUMER, 0, ids)
        entries = world.model.entries_of(name, ids)
        world.model.give_back(entries)
        # Documented: entries within the range of the batch in flight may be acknowledged with it. A batch that is
        # being taken ends at the group's position. If the clock was set back, a batch before it is acknowledged again.
        assert seen.position is not None
        mark, end = world.committed(name), seen.position if world.query.takes_a_batch else world.query.logged(name)
        world.model.excuse(
            [entry for entry in entries if (mark < entry.key or is_behind(world.server)) and entry.key <= id_key(end)],
            Reason.HANDED_WITHIN,
        )
        for entry in entries:
            entry.only_pending = True
        world.model.stream(name).suffers("entries given to us")


def grab(world: World, step: Step) -> None:
    """XCLAIM the query's entries for another consumer."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    ours = [entry_id for entry_id in seen.ours() if entry_id in seen.ids]
    if ours:
        ids = ours[: part(len(ours), step.amount)]
        world.client.xclaim(name, GROUP, consumer, 0, ids)
        taken = world.model.entries_of(name, ids)
        world.model.deliver_to_other(taken, consumer)
        for entry in taken:
            entry.repeat_reasons.add(Reason.TAKEN)
        world.model.is_shared(name)
        world.model.stream(name).suffers("entries taken from us")


def settle(world: World, step: Step) -> None:
    """XACK the query's entries."""
    name = pick(world.names(), step.choice)
    ours = world.see(name).ours()
    if ours:
        first = int(step.how * len(ours))
        ids = ours[first : first + part(len(ours), step.amount)]
        world.client.xack(name, GROUP, *ids)
        world.model.excuse(world.model.entries_of(name, ids), Reason.DONE_BY_OTHERS)
        world.model.stream(name).suffers("our entries acknowledged")


def setid(world: World, step: Step) -> None:
    """XGROUP SETID, back or forward."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    target = pick(["0-0", *seen.ids, "$"], step.how)
    was = seen.position
    world.client.xgroup_setid(name, GROUP, id=target)
    now = world.see(name).position
    assert now is not None
    if now != was:
        forward = id_key(now) > id_key(was)
        world.model.stream(name).suffers("group set forward" if forward else "group set back")
        _moved(world, name)
        _skipped(world, name, was, now)
        has_others = any(not is_ours(consumer) for consumer in seen.consumers)
        if has_others or world.query.is_account_unknown(name):  # now, or at the last batch
            (world.model.is_shared if forward else world.model.goes_back)(name)
        world.births.changed(name, by_operator=True)


def seek(world: World, step: Step) -> None:
    """rstream groups seek: what it passes over need not be read, and what is above is read again."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    target = pick(["0-0", *seen.ids], step.how)
    world.client.xgroup_setid(name, GROUP, id=target, entries_read=world.added_to(name, target))
    key = committed_key(name, GROUP, CONSUMER)
    before = Mark.parse((world.client.get(key) or "").encode())
    world.client.set(key, str(Mark.of_seek(StreamId.parse(target), before)))
    ours = {*seen.ours()}
    world.model.pass_over(world.model.entries_of(name, ours), id_key(target))
    for entry in world.model.entries_of(name):
        if entry.key > id_key(target):
            entry.repeat_reasons.add(Reason.SOUGHT)
        elif entry.id not in ours:
            world.model.excuse([entry], Reason.PASSED_OVER)
    world.model.stream(name).ever.add("group sought")  # and no cause of an error


def destroy(world: World, step: Step) -> None:
    """XGROUP DESTROY."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is not None:
        world.client.xgroup_destroy(name, GROUP)
        world.model.excuse_only_pending(world.model.entries_of(name, seen.pending))
        world.model.stream(name).suffers("group destroyed")
        if "server set back" in world.model.stream(name).ever and id_key(seen.position) < id_key(
            world.query.logged(name)
        ):  # documented: it looks like a new stream
            for entry in world.model.alive(name):
                entry.repeat_reasons.add(Reason.BEFORE_ITS_GROUP)
        _moved(world, name)
        world.births.changed(name, by_operator=True)


def remake(world: World, step: Step) -> None:
    """XGROUP DESTROY, then CREATE at the end, at the start, or in between."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    if seen.position is None:
        return
    world.client.xgroup_destroy(name, GROUP)
    world.model.excuse_only_pending(world.model.entries_of(name, seen.pending))
    target = "$" if step.how < 0.4 else "0" if step.how < 0.7 else pick(["0-0", *seen.ids], step.amount)
    world.client.xgroup_create(name, GROUP, id=target)
    world.model.stream(name).suffers("group created again")
    _moved(world, name)
    _skipped(world, name, seen.position, world.see(name).position)
    # Documented: created again amid a trigger, or after a seek that no run has followed yet. The checkpoint may still
    # know that others have read from it.
    was_shared = world.model.stream(name).ever & OTHERS
    if was_shared and (amid_a_trigger(world) or is_sought(world, [name])):
        world.model.is_shared(name)
        taken = world.model.entries_of(name, seen.ours()) if world.query.takes_a_batch else []
        logged = id_key(world.query.logged(name))
        world.model.excuse([entry for entry in taken if entry.key > logged], Reason.DELETED_AMID)
    if world.query.is_account_unknown(name):
        world.model.goes_back(name)
    world.births.changed(name, by_operator=True)


def _skipped(world: World, name: str, was: str, now: str | None) -> None:
    """Record which entries the group will not deliver, after it was moved."""
    assert now is not None
    passed = [entry for entry in world.model.alive(name) if id_key(was) < entry.key <= id_key(now)]
    world.model.stream(name).skipped |= {entry.n for entry in passed}
    gone = [entry for entry in world.model.entries_of(name) if entry.removed_by and world.model.is_due(entry)]
    world.model.stream(name).gone |= {entry.n for entry in gone if id_key(was) < entry.key <= id_key(now)}
    if id_key(now) < id_key(was):
        world.model.stream(name).back |= {entry.n for entry in world.model.entries_of(name) if entry.key > id_key(now)}


def _moved(world: World, name: str) -> None:
    """Record that the group was moved. Documented: if its query takes a batch, or reserves one ahead, entries are
    delivered again."""
    if not amid_a_trigger(world):
        return
    position = world.see(name).position
    for entry in world.model.entries_of(name):
        if position is None or entry.key > id_key(position):
            entry.repeat_reasons.add(Reason.MOVED_AMID)


def expel(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER one of the query's consumers."""
    name = pick(world.names(), step.choice)
    seen = world.see(name)
    ours = sorted(consumer for consumer in seen.consumers if is_ours(consumer))
    if ours:
        deleted = pick(ours, step.how)
        pending = seen.of_consumer(deleted)
        world.client.xgroup_delconsumer(name, GROUP, deleted)
        world.model.stream(name).suffers("our consumer deleted")
        if deleted == CONSUMER:
            world.model.excuse_only_pending(world.model.entries_of(name, pending))
        # Documented: deliveries to others cannot be distinguished from deliveries to us.
        if world.query.takes_a_batch and any(not is_ours(consumer) for consumer in seen.consumers):
            world.model.excuse(world.model.entries_of(name, pending), Reason.CONSUMER_DELETED_AMID)
        if not any(name in offset["streams"] for offset in world.query.offsets):  # only the pending list held them
            world.model.excuse(world.model.entries_of(name, pending), Reason.CONSUMER_DELETED_FIRST)


# -- a second group ----------------------------------------------------------------------------------------------------


def audit(world: World, step: Step) -> None:
    """Create the group; or let it read up to six entries, and acknowledge some of those that are pending."""
    name = pick(world.names(), step.choice)
    check_removals(world)
    if name not in world.audited:
        try:
            world.client.xgroup_create(name, AUDIENCE, id="0")
        except redis.ResponseError:  # no stream, or a restored one that has the group
            return
        present, is_late = set(world.see(name).ids), amid_a_trigger(world)  # the query may have chosen what it removes
        world.audited[name] = {
            entry.n
            for entry in world.model.alive(name)
            if entry.id not in present or (is_late and (entry.acknowledged or entry.excuses))
        }
        return
    try:
        world.client.xreadgroup(AUDIENCE, "auditor", {name: ">"}, count=1 + int(step.amount * 6))
        pending = world.client.xpending_range(name, AUDIENCE, "-", "+", 1000)
    except redis.ResponseError:
        return
    done = [str(found["message_id"]) for found in pending][: part(len(pending), step.how)]
    if done:
        world.client.xack(name, AUDIENCE, *done)


# -- operators: dead letters -------------------------------------------------------------------------------------------


_OVERTAKES = 20.0  # seconds, more than a session lasts
_WAYS = (
    RedriveOptions(DEAD),
    RedriveOptions(DEAD),
    RedriveOptions(DEAD, limit=2),
    RedriveOptions(DEAD, max_redrives=1),
    RedriveOptions(DEAD, changes=FieldChanges(tuple(CHANGED.items()))),
)


def misfit(world: World, step: Step) -> None:
    """Add one to four entries whose value does not fit its column."""
    world.add(pick(world.names(), step.choice), 1 + int(step.amount * 4), "no number")


def redrive(world: World, step: Step) -> None:
    """Send dead letters back, for some requests or to the end; then the process is killed, or stands still. One that
    stands still goes on, or another one begins: beside it, or when its session is over."""
    redrives = world.redrives
    if redrives.standing and step.how < 0.4:
        process = redrives.standing[0]
    else:
        if redrives.standing and step.how > 0.6:
            world.network.pass_time(_OVERTAKES)
        process = redrives.start(pick([*_WAYS], step.choice))
    redrives.work(process, None if step.amount > 0.7 else int(step.amount * 80))
    if not process.actor.done and (step.how * 10) % 1 < 0.5:
        redrives.kill(process)


# -- the job `archive` -------------------------------------------------------------------------------------------------


_SCHEMA = pa.schema([
    ("stream", pa.string()), ("id", pa.string()), ("timestamp", pa.timestamp("us", "UTC")),
    ("fields", pa.map_(pa.string(), pa.string())),
])  # fmt: skip


def archive(world: World, step: Step) -> None:
    """Archive the first entries of each stream that are not archived yet. Streams without a group lose some of them:
    those at the head, and one above, as XTRIM … ACKED may leave holes."""
    for name in world.names():
        seen = world.see(name)
        new = [entry for entry in world.model.entries_of(name, seen.ids) if not entry.archived]
        batch = new[: part(len(new), step.amount)]
        if not batch:
            continue
        _write(Path(world.archive), name, batch)
        for entry in batch:
            # Entries that the stream has, and those that are missing in between, come in batches of their own.
            entry.archived = entry.shuffled = True
        if seen.position is None:
            archived = [entry.id for entry in world.model.entries_of(name, seen.ids) if entry.archived]
            trimmed = part(len(archived), step.how)
            holes = archived[trimmed + 1 :][:1] if step.choice < 0.6 else []
            world.tell(f"        {name}: {len(batch)} archived, {archived[:trimmed]} trimmed, {holes} missing")
            missing = [*archived[:trimmed], *holes]
            world.client.xdel(name, *missing)
            if world.model.begun:  # of a stream that a pattern finds later, only what the stream has is read
                world.model.take(world.model.entries_of(name, missing), "trimmed")


def _write(folder: Path, stream: str, batch: list[Entry]) -> None:
    moment = datetime.datetime.fromtimestamp(batch[0].key[0] / 1000, datetime.UTC)
    to = folder / f"date={moment:%Y-%m-%d}" / f"batch=b12345678-{batch[0].n}"
    to.mkdir(parents=True)
    rows = [{"stream": stream, "id": entry.id, "timestamp": None, "fields": [*entry.fields.items()]} for entry in batch]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), to / "part-00000.snappy.parquet", row_group_size=2)


# -- `rstream where` ---------------------------------------------------------------------------------------------------


def where(world: World, step: Step) -> None:
    """Ask about one to six entries and dead letters."""
    world.asks = True
    Asker(world, random.Random(f"{world.setup.seed} {step.choice}")).ask(1 + int(step.amount * 6))
