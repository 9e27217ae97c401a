"""The first appearance of the query's group on each stream: the query need not read the entries before it."""

from __future__ import annotations

from spark_streams.connector.source.group.begin import InitialPositions
from spark_streams.connector.source.group_client import Membership
from tools.simulation.at_peace import unnoticed
from tools.simulation.reasons import Reason
from tools.simulation.world import CONSUMER, GROUP, World

_SAVED = InitialPositions(Membership(GROUP, CONSUMER))


class Births:
    """First appearance of the query's group on each stream, under this checkpoint.

    When a group exists on any stream, a query with a pattern reads new streams from their first entry.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = False
        self.passed: set[int] = set()  # numbers of entries before which a late group may have started
        self._first: set[str] = set()  # streams that existed when the query received its start offset
        self._starts: dict[str, str] = {}  # startingOffsets with which each stream's first group began
        self._created_again: dict[str, tuple[int, int]] = {}  # where the query begins in streams that had vanished
        # Where it begins in streams without a group, since it was asked: a run after a kill begins there, too.
        self._saved: dict[str, tuple[int, int]] = {}
        self._left: dict[str, int] = {}  # entries so far, when the checkpoint dropped a stream that was missing

    def update(self, begun: bool = False) -> None:
        """Search for new groups. begun: the query has received its start offset."""
        model, options = self._world.model, self._world.query.options
        late = self._begun and "streamsPattern" in options
        start = options["startingOffsets"]
        at_id = {name: text for name, text in self._starts.items() if text not in ("earliest", "latest")}
        for name, text in at_id.items():  # which may lie ahead of the stream
            below = [entry for entry in model.entries_of(name) if entry.key <= _key(text)]
            if any(Reason.BEFORE not in entry.excuses for entry in below):  # documented: the account counts them
                model.stream(name).suffers("added before the start")
            model.excuse(below, Reason.BEFORE)
        for name in self._world.names():
            if name in model.streams and model.streams[name].born and name not in self._left:
                continue
            seen = self._world.see(name)
            if seen.position is None:
                self._save(name)
                continue
            model.stream(name).born = self._begun = True
            begins = min(_key(seen.position), self._saved.pop(name, _key(seen.position)))
            since = self._left.pop(name, 0)
            before = [entry for entry in model.entries_of(name) if entry.key <= begins and entry.n > since]
            if "vanished" in model.stream(name).ever and not self._world.query.offsets:
                self._created_again[name] = _key(seen.position)
            if not late or name in self._first:
                model.excuse(before, Reason.BEFORE)
                self._starts.setdefault(name, start)
            elif start != "earliest":
                self.passed |= {entry.n for entry in before}
                if {"evicted begun", "evicted first"} & model.stream(name).ever:
                    model.excuse(before, Reason.START_DELETED)
        for name, position in self._created_again.items():  # documented: producers' clock was set back
            model.excuse([entry for entry in model.entries_of(name) if entry.key <= position], Reason.BEFORE)
        if begun and not self._begun:
            self._first = {name for name in self._world.names() if self._world.see(name).ids}
        self._begun |= begun

    def _save(self, name: str) -> None:
        saved = self._world.client.get(_SAVED.key_of(name))
        if saved is not None:
            self._saved.setdefault(name, _key(str(saved)))

    def forget(self) -> None:
        """Record that the first positions that the server keeps are deleted: the query is asked again."""
        self._saved.clear()

    def changed(self, name: str, by_operator: bool = False) -> None:
        """Record that the group of a stream has changed.

        Without a checkpoint only the group stores the start of the query: a new group starts as the options say. The
        same applies to a stream that is no longer in the query's list.
        """
        self._saved.pop(name, None)
        if name in self._left and not self._is_without_group(name):
            del self._left[name]
        if name not in self._world.query.reads():
            self._world.model.stream(name).born = self._world.see(name).position is not None
            self._world.model.excuse(self._world.model.entries_of(name), Reason.NOT_IN_THE_LIST)
            for entry in self._world.model.entries_of(name):
                entry.repeat_reasons.add(Reason.NOT_IN_THE_LIST)
        elif not self._world.query.offsets:
            self._world.model.stream(name).born = False
            self._world.model.stream(name).moved_at_first |= by_operator
            for entry in self._world.model.entries_of(name):
                entry.repeat_reasons.add(Reason.NO_CHECKPOINT)
            self._begun = any(stream.born for stream in self._world.model.streams.values())
            self.update()
        if by_operator and not any(name in offset["streams"] for offset in self._world.query.offsets):
            position = self._world.see(name).position
            moved = [
                entry
                for entry in self._world.model.entries_of(name)
                if position is not None and entry.key <= _key(position)
            ]
            self._world.model.excuse(moved, Reason.MOVED_FIRST)
            for entry in self._world.model.entries_of(name) if position is None else ():
                entry.repeat_reasons.add(Reason.DESTROYED_FIRST)

    def dropped(self, name: str) -> None:
        """Record that the checkpoint no longer names a stream that the query does not read.

        The query would start on it again, as the options say if it has no group.
        """
        model = self._world.model
        model.forget([name])
        model.stream(name).born = self._world.see(name).position is not None
        for entry in [] if model.stream(name).born else model.entries_of(name):
            entry.repeat_reasons.add(Reason.DROPPED_FROM_THE_LIST)

    def left(self, name: str) -> None:
        """Record that a query over a pattern has stopped reading a missing stream. If it is in a list later, its group
        is a new one: what comes until then may be before that."""
        if self._is_without_group(name):
            self._left[name] = len(self._world.model.entries)
            self._saved.pop(name, None)

    def _is_without_group(self, name: str) -> bool:
        with unnoticed(self._world):
            return self._world.see(name).position is None

    def restart(self) -> None:
        """Start a new checkpoint: existing groups stay, missing groups are created as the options say.

        From then on it is unknown what a moved group has read (a row under Limits).
        """
        self._begun = False
        for name in self._world.names():
            if name in self._world.model.streams:
                seen, stream = self._world.see(name), self._world.model.stream(name)
                stream.born = seen.position is not None
                stream.moved_at_first |= stream.born and not seen.is_counted
                self._begun |= stream.born


def _key(entry: str) -> tuple[int, int]:
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)
