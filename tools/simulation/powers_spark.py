"""Events of Spark's processes: the driver is killed, the query restarts with other options, tasks fail or run twice;
other processes run the same query.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from spark_streams.connector.errors import ConsumerTakenError, RStreamError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.lease import TTL
from spark_streams.operations.verify.history import id_key
from tools.simulation.actor import Actor, Killed, TaskFailed
from tools.simulation.at_peace import unnoticed
from tools.simulation.options import PATTERN, with_option, without
from tools.simulation.powers_clients import NAMES
from tools.simulation.reasons import Reason
from tools.simulation.setup import Step, part, pick
from tools.simulation.tasks import Twin
from tools.simulation.world import CONSUMER, GROUP, OTHER, World

TWIN_TICKS = 20  # the highest number of ticks after which a twin stands still


def kill(world: World, step: Step) -> None:
    """SIGKILL the driver."""
    if world.query.running:
        raise Killed


def crash(world: World, step: Step) -> None:
    """SIGKILL the driver while it runs the next batch: after its first task, or after the sink has closed it."""
    world.query.tasks.crashes.append(step.how >= 0.5)


def restart(world: World, step: Step) -> None:
    """Stop the query. The next trigger starts it with other options."""
    world.query.change(dict(step.options))
    if world.query.running:
        raise Killed


def relist(world: World, step: Step) -> None:
    """Stop the query, and start it with one stream more or less."""
    query = world.query
    if "streams" not in query.options:
        return
    listed, name = set(query.reads()), pick(world.names(), step.choice)
    listed ^= {name}
    query.change({**query.options, "streams": ",".join(sorted(listed or {name}))})
    if query.running:
        raise Killed


def renew(world: World, step: Step) -> None:
    """Stop the query. The next trigger starts it with a new checkpoint: its group continues (onNewCheckpoint)."""
    world.operator.renew()


def fail(world: World, step: Step) -> None:
    """Let the running task fail, if there is one."""
    if world.query.tasks.in_task and Actor.current() is None:
        raise TaskFailed


def twin(world: World, step: Step) -> None:
    """Run a task of the next batch twice: the second execution stands still for a while."""
    later = pick([0, 0, 0, 1, 2, -1], step.how)
    world.query.tasks.twins.append(Twin(step.choice, int(step.amount * TWIN_TICKS), later, step.at))


def wake(world: World, step: Step) -> None:
    """Let all tasks that stand still continue."""
    world.query.tasks.wake_all()


# -- changes between two runs ------------------------------------------------------------------------------------------


def leave_out(world: World, step: Step) -> None:
    """Stop the query, and start it without one stream or several neighbours, but not without all."""
    listed = world.query.reads()
    if "streams" in world.query.options and len(listed) > 1:
        first = listed.index(pick(listed, step.choice))
        out = listed[first : first + part(len(listed) - 1, step.amount)]
        _start_with(world, {**world.query.options, "streams": ",".join(name for name in listed if name not in out)})


def put_back(world: World, step: Step) -> None:
    """Stop the query, and start it with all streams that were ever in its list, or with one more of them."""
    query = world.query
    out = sorted(query.listed - {*query.reads()})
    if "streams" in query.options and out:
        back = out if step.how < 0.6 else [pick(out, step.choice)]
        _start_with(world, {**query.options, "streams": ",".join(sorted([*query.reads(), *back]))})


def deliver_often(world: World, step: Step) -> None:
    """Stop the query, and start it without maxDeliveries."""
    if "maxDeliveries" in world.query.options:
        options = {name: value for name, value in world.query.options.items() if name != "maxDeliveries"}
        if options.get("mode") != "DEADLETTER":
            options.pop("deadLetterStream", None)
        world.query.was_unlimited = True
        _start_with(world, options)


def deliver_seldom(world: World, step: Step) -> None:
    """Stop the query, and start it with maxDeliveries."""
    if "maxDeliveries" not in world.query.options:
        _start_with(world, with_option(world.query.options, "maxDeliveries", pick(["1", "2"], step.how)))


def repattern(world: World, step: Step) -> None:
    """Stop the query, and start it with a pattern in place of its list, or with a list in place of its pattern."""
    options = world.query.options
    if "streams" in options:
        excluded = {"streamsExcept": pick(world.names(), step.choice)} if step.how > 0.5 else {}
        _start_with(world, {**with_option(without(options, "streams"), "streamsPattern", PATTERN), **excluded})
    else:
        listed = world.query.reads() if step.how < 0.7 else []
        listed = listed or [pick(world.names(), step.choice)]
        others = without(options, "streamsPattern", "streamsExcept")
        _start_with(world, with_option(others, "streams", ",".join(listed)))


def begin_otherwise(world: World, step: Step) -> None:
    """Stop the query, and start it with another startingOffsets: that is for groups which do not exist yet."""
    ids = [entry.id for name in world.names() for entry in world.model.entries_of(name)]
    starts = ["earliest", "latest", *([pick(ids, step.choice)] if ids else [])]
    world.births.update()
    world.query.options = {**world.query.options, "startingOffsets": pick(starts, step.how)}
    _start_with(world, world.query.options)


def commit_otherwise(world: World, step: Step) -> None:
    """Stop the query, and start it with another onCommit, or without."""
    kept = without(world.query.options, "onCommit")
    value = pick(["", "trim", "delete"], step.how)
    _start_with(world, with_option(kept, "onCommit", value) if value else kept)


def regroup(world: World, step: Step) -> None:
    """Stop the query, and start it with another group, or as another consumer: its checkpoint is refused."""
    if world.query.offsets:
        _start_with(world, {**world.query.options, pick(["group", "consumer"], step.how): OTHER})


def _start_with(world: World, options: Mapping[str, str]) -> None:
    query = world.query
    query.listed |= {*query.reads()}  # at the end, all of them are read
    query.change({**options})
    if query.running:
        raise Killed


def pour(world: World, step: Step) -> None:
    """Add 20 to 100 entries."""
    world.add(pick(world.names(), step.choice), 20 + int(step.amount * 81))


# -- a second process, with the same consumer --------------------------------------------------------------------------


_RIVAL = 1_000_000  # more than any number of a driver's process
_STANDS_STILL = 20.0  # seconds, more than a session lasts


def rival(world: World, step: Step) -> None:
    """Start the query once more. It is refused as long as the session of the first one lasts, and the server does not
    forget it meanwhile. If the server refuses commands of this one for so long, the first one has stood still."""
    is_refused = world.query.running and world.rival is None and has_all_leases(world)
    for session in {lease["session"] for lease in _leases(world).values()} if is_refused else ():
        world.client.pexpire(session, TTL)  # a thread of the query has renewed it also while a reply was late
    began = time.monotonic()
    has_begun = is_refused and _begins(world)
    if has_begun and time.monotonic() - began > _STANDS_STILL / 2:
        world.rival, world.has_successor = _RIVAL, True
    elif has_begun and world.keeps_leases and _holders(world):
        world.fail(f"two queries | {world.query.mode}", "a second query has the consumer of a running one")


def stall(world: World, step: Step) -> None:
    """The driver stands still, and another one takes its lease. It must notice that with its next trigger."""
    if world.query.running and world.rival is None and has_all_leases(world):
        world.network.pass_time(_STANDS_STILL)
        if not has_all_leases(world):
            _begins(world)
        # Also if a session was evicted since, or the stream was deleted.
        keys = [lease_key(name, GROUP, CONSUMER) for name in world.query.reads()]
        holders = {json.loads(lease)["pid"] for key in keys if (lease := world.client.get(key))}
        if _RIVAL in holders:
            # A stream that is new has no lease yet: the successor may have those of the others.
            world.rival, world.has_successor = _RIVAL, holders == {_RIVAL}
            world.tell("      it has a successor")


def _begins(world: World) -> bool:
    """Let another process begin to read. Return whether it has the lease of all streams; False also if it cannot reach
    the server, or if its pattern has found none: it knows of no checkpoint."""
    first, world.process, world.rival = world.process, _RIVAL, world.process
    before = _positions(world)
    world.keeps_leases = True
    try:
        reader = world.query.another_reader()
        start = reader.initialOffset()
        batches, begin = reader.batches_from(start)
        batches.open_groups(begin, (), lambda client: None)
        if world.query.options.get("onNewCheckpoint") == "restart":  # it has no checkpoint
            _reads_again(world)
    except ConsumerTakenError:
        return False
    except RStreamError as error:
        world.tell(f"      {error}")
        return False
    finally:
        world.process, world.rival = first, None
        for name, position in _positions(world).items():
            if position is not None and before.get(name) is None:  # it was created where a new query begins
                entries = [entry for entry in world.model.entries_of(name) if entry.key > id_key(position)]
                world.model.stream(name).back |= {entry.n for entry in entries}
    return bool(batches.streams)


def _positions(world: World) -> dict[str, str | None]:
    with unnoticed(world):
        return {name: world.see(name).position for name in world.query.reads()}


def _reads_again(world: World) -> None:
    """Record that the groups were set to where a process without a checkpoint begins."""
    for name in world.query.reads():
        position = world.see(name).position
        for entry in world.model.entries_of(name):
            if position is not None and entry.key > id_key(position):
                entry.repeat_reasons.add(Reason.RESTARTED_BESIDE)


def has_all_leases(world: World) -> bool:
    """Whether the query has the leases of all its streams that exist, and its session lasts."""
    return {*_holders(world).values()} == {world.process}


def _holders(world: World) -> dict[str, int | None]:
    """Return the process that has the lease of each stream of the query that exists; None: its session has ended."""
    return {
        name: lease["pid"] if lease and world.client.exists(lease["session"]) else None
        for name, lease in _leases(world).items()
    }


def _leases(world: World) -> dict[str, dict[str, Any]]:
    """Return the lease of each stream of the query that exists; empty: it has none."""
    return {
        name: json.loads(world.client.get(lease_key(name, GROUP, CONSUMER)) or "{}")
        for name in world.query.reads()
        if world.see(name).exists
    }


# -- queries of the group on another machine ---------------------------------------------------------------------------


def elsewhere(world: World, step: Step) -> None:
    """Start the query once more, on another machine. It is refused while the query runs. If the query does not run, it
    has the leases when the query's session is over."""
    is_refused = world.query.running
    if is_refused and not (world.rival is None and world.keeps_leases and has_all_leases(world)):
        return
    process = world.process
    begins = world.elsewhere.begin(CONSUMER, _existing(world))
    if begins and is_refused and world.process == process:
        if world.keeps_leases:
            world.fail(f"two queries | {world.query.mode}", "a second query, on another machine, has the consumer")
        world.elsewhere.forget()  # a lease was deleted: the query notices it later


def guest(world: World, step: Step) -> None:
    """Another consumer is a query on another machine."""
    consumer = pick(NAMES, step.how)
    if all(holder.consumer != consumer for holder in world.elsewhere.living):
        world.elsewhere.begin(consumer, _existing(world))


def perish(world: World, step: Step) -> None:
    """A query on the other machine dies."""
    if world.elsewhere.living:
        world.elsewhere.end(pick(world.elsewhere.living, step.choice))


def _existing(world: World) -> list[str]:
    return [name for name in world.query.reads() if world.see(name).exists]
