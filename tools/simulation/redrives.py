"""Processes that send dead letters back (`rstream dead redrive`): they work a few requests at a time, stand still, are
overtaken by another one, are killed, or end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from spark_streams.connector.deadletter.page_reader import DEAD_LETTER_LIMITS
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_options import RedriveOptions
from spark_streams.connector.errors import (
    RedriveTakenError,
    RStreamError,
    ServerError,
    StreamMissingError,
    StreamStateError,
)
from spark_streams.connector.keys import key_beside
from spark_streams.connector.wire.address.address import Address
from spark_streams.operations.verify.history import id_key
from tools.simulation.actor import Actor
from tools.simulation.injected import PATIENCE, TERMS
from tools.simulation.letters import Letter
from tools.simulation.options import DEAD
from tools.simulation.ticks import Killed
from tools.simulation.world import World, shape

_FIRST = 2_000_000  # number of the first process; those of drivers are lower
_FEW = replace(DEAD_LETTER_LIMITS, first_page=2, largest_page=3)  # so that a few dead letters are several pages
_LEASE = key_beside(DEAD, "lease", "redrive")
_REFUSAL_ALLOWED = ("evicted redrive", "evicted redriven", "evicted lease", "evicted session")


@dataclass
class Process:
    """One process. before: dead letters that existed when it began; may_fail: the server was away meanwhile."""

    number: int
    options: RedriveOptions
    actor: Actor
    before: list[Letter]
    may_fail: bool = False
    has_worked: bool = False


class Redrives:
    """All of them. standing: those that stand still; may_meet: a lease may be missing, so two may work at a time, and
    one of them may find the other one's state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = 0
        self.standing: list[Process] = []
        self._working: Process | None = None
        self.may_meet = False

    def lives(self, number: int) -> bool:
        """Whether the process with this number lives."""
        return any(process.number == number for process in self._alive())

    def start(self, options: RedriveOptions) -> Process:
        """Begin a process. It has not worked yet."""
        number = _FIRST + self._begun
        self._begun += 1
        address = replace(Address.parse(self._world.server.url), patience=PATIENCE)

        def work() -> Any:
            return DeadLetterRedrive(address, options, sleep=PATIENCE.sleep, limits=_FEW, terms=TERMS).run()

        self._world.letters.observe()
        before = [letter for letter in self._world.letters.all.values() if not letter.is_gone]
        process = Process(number, options, Actor(work, process=number), before)
        self.may_meet |= bool(self.standing)
        return process

    def work(self, process: Process, ticks: int | None) -> None:
        """Let a process work for so many ticks, or to its end."""
        world = self._world
        self.standing = [other for other in self.standing if other is not process]
        # One that stood still may go on until its successor has written its own state.
        is_refused = not process.has_worked and any(self._holds_lease(other) for other in self.standing)
        process.has_worked = True
        self._working, world.pauses = process, 0
        process.may_fail |= world.away
        world.letters.observe()
        process.actor.resume(ticks)
        copied = world.letters.copied(bool(process.options.changes))
        world.letters.observe()
        process.may_fail |= world.away
        self._working = None
        if copied and is_refused:
            world.fail("two redrives at once", f"{process.number} has moved {copied} beside another one")
        if process.actor.done:
            self._judge(process)
            return
        self.standing.append(process)
        has_begun = world.client.exists(key_beside(DEAD, "redrive"))
        if has_begun and not world.client.exists(_LEASE) and not self._has_lost_keys():
            world.fail("two redrives at once", f"{process.number} works without a lease")

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.standing = [other for other in self.standing if other is not process]
        self._cut(process)
        process.actor.end()

    def cut(self) -> None:
        """Break the connections of all processes."""
        for process in self._alive():
            process.may_fail = True
            self._cut(process)

    def finish(self) -> None:
        """Let all processes end, and another one move the rest."""
        if self._begun:
            for process in [*self.standing]:
                self.work(process, None)
            if self._world.client.exists(DEAD):
                self.work(self.start(RedriveOptions(DEAD)), None)

    def end(self) -> None:
        """Kill all processes."""
        for process in [*self.standing]:
            self.kill(process)

    def _alive(self) -> Iterator[Process]:
        yield from self.standing
        if self._working is not None:
            yield self._working

    def _cut(self, process: Process) -> None:
        self._world.cut(connection for connection, owner in self._world.connections if owner is process.actor)

    def _holds_lease(self, process: Process) -> bool:
        held = json.loads(self._world.client.get(_LEASE) or "{}")
        return held.get("pid") == process.number and bool(self._world.client.exists(held["session"]))

    def _judge(self, process: Process) -> None:
        """Check how a process has ended."""
        world, error = self._world, process.actor.error
        world.tell(f"   redrive {process.number}: {error or process.actor.result}")
        if error is None:
            self._check_nothing_left(process)
        elif isinstance(error, RedriveTakenError):
            if not self.may_meet and not self._has_lost_keys():
                world.fail(f"a redrive is refused | {shape(error)}", error.message)
        elif isinstance(error, StreamMissingError):
            if process.before and world.client.exists(DEAD):  # else the stream may have come after it had looked
                world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif isinstance(error, StreamStateError):
            self._remedy(error)
        elif isinstance(error, ServerError):
            if not process.may_fail:
                world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif isinstance(error, RStreamError):
            world.fail(f"a redrive fails | {shape(error)}", error.message)
        elif not isinstance(error, Killed):
            world.fail(f"crash | a redrive: {type(error).__name__}", repr(error))

    def _check_nothing_left(self, process: Process) -> None:
        """Check that the dead letters which existed before have left, if nothing limited it. A run that goes on with
        that of a killed process moves what existed then."""
        ever = {event for stream in self._world.model.streams.values() for event in stream.ever}
        if process.options.limit is not None or {"evicted origins", "flushed", "server set back"} & ever:
            return
        bound = id_key(process.actor.result.bound)
        left = [letter.id for letter in process.before if not letter.is_gone and id_key(letter.id) <= bound]
        if left:
            self._world.fail("a redrive leaves dead letters", f"{left}; {process.actor.result}")

    def _has_lost_keys(self) -> bool:
        ever = {event for stream in self._world.model.streams.values() for event in stream.ever}
        return bool(ever & {*_REFUSAL_ALLOWED, "flushed", "server set back"})

    def _remedy(self, error: StreamStateError) -> None:
        """Do what the error says about entries that left their stream before their dead letters were deleted."""
        world = self._world
        command = re.search(r"redis-cli DEL (\S+)$", error.message)
        removed = any(entry.removed_by for entry in world.model.entries.values())
        if command is None or not removed:
            world.fail(f"a redrive fails | {shape(error)}", error.message)
            return
        world.tell(f"   operator: deletes {command[1]}")
        world.client.delete(command[1].strip("'"))
        for letter in world.letters.all.values():
            letter.may_repeat = True
