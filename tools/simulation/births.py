"""When the query's group first comes to a stream: what was there before that is not the query's to read."""

from __future__ import annotations

from tools.simulation.world import World


class Births:
    """begun: the query, under this checkpoint, has a group somewhere: streams that come now are read from their first
    entry where it reads by a pattern."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = False
        self.passed: set[int] = set()  # numbers of entries that a late group may have begun behind
        self._first: set[str] = set()  # streams that were there when the query was told where it starts
        self._at_id: set[str] = set()  # streams that are read from an id on, which may lie ahead of them

    def look(self, begun: bool = False) -> None:
        """Look for new groups. begun: the query has been told where it starts."""
        model, options = self._world.model, self._world.query.options
        late = self._begun and "streamsPattern" in options
        start = options["startingOffsets"]
        for name in self._at_id if start not in ("earliest", "latest") else ():
            model.excuse([one for one in model.of(name) if one.key <= _key(start)], "before the start")
        for name in self._world.names():
            if name in model.streams and model.streams[name].born:
                continue
            seen = self._world.see(name)
            if seen.position is None:
                continue
            model.stream(name).born = self._begun = True
            before = [one for one in model.of(name) if one.key <= _key(seen.position)]
            if not late or name in self._first:
                model.excuse(before, "before the start")
                self._at_id.add(name)
            elif options["startingOffsets"] == "latest":
                self.passed |= {one.n for one in before}
        if begun and not self._begun:
            self._first = {name for name in self._world.names() if self._world.see(name).ids}
        self._begun |= begun

    def changed(self, name: str, by_hand: bool = False) -> None:
        """Something has happened to the group of a stream. Before there is a checkpoint the group alone knows where the
        query begins: a new one begins as the options say. And so where the query has been told to read it no more."""
        if name not in self._world.query.reads():
            self._world.model.stream(name).born = self._world.see(name).position is not None
            self._world.model.excuse(self._world.model.of(name), "its group changed while it was not read")
            for one in self._world.model.of(name):
                one.again.add("its group changed while it was not read")
        elif not self._world.query.offsets:
            self._world.model.stream(name).born = False
            self._world.model.stream(name).moved_at_first |= by_hand
            for one in self._world.model.of(name):
                one.again.add("the group changed before there was a checkpoint")
            self._begun = any(one.born for one in self._world.model.streams.values())
            self.look()
        if by_hand and not any(name in offset["streams"] for offset in self._world.query.offsets):
            position = self._world.see(name).position
            some = [one for one in self._world.model.of(name) if position is not None and one.key <= _key(position)]
            self._world.model.excuse(some, "its group was moved before a checkpoint named the stream")

    def dropped(self, name: str) -> None:
        """The checkpoint names the stream no more, and the query does not read it: it would begin on it anew, as the
        options say if it has no group."""
        model = self._world.model
        model.forget([name])
        model.stream(name).born = self._world.see(name).position is not None
        for one in [] if model.stream(name).born else model.of(name):
            one.again.add("its group was gone when the checkpoint dropped it")

    def anew(self) -> None:
        """A new checkpoint: groups that are there stay as they are, the others are made as options say. What a group
        that was moved has read is not known from then on (a row under Limits)."""
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
