"""The operator of the query: is told of errors, judges whether they are right, and does what they say."""

from __future__ import annotations

import re

from spark_streams.errors import GroupSharedError, LedgerError, RStreamError, ServerError, StreamStateError
from tools.chaos.history import id_key
from tools.simulation.model import OTHER_CHECKPOINT
from tools.simulation.once import OUT
from tools.simulation.world import GROUP, World, shape

_MOST = 3  # times that an error may come again although nothing more has happened
_GOES_ON = "the next run goes on without them"


class Operator:
    """Chooses among the remedies that a message names."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: list[tuple[int, str]] = []

    def told(self, error: RStreamError) -> None:
        """The query has ended with this error."""
        world, query = self._world, self._world.query
        text = error.message
        streams = [name for name in world.names() if re.search(rf"(?<![\w:]){name}(?![\w:])", text)]
        causes = sorted({cause for name in streams for cause in world.model.stream(name).causes})
        if isinstance(error, ServerError) and not isinstance(error, StreamStateError):
            if not world.away:
                world.fail(f"false alarm | {shape(error)} | {query.mode}", text)
            return
        if not isinstance(error, StreamStateError):
            world.fail(f"unexpected | {shape(error)} | {query.mode}", text)
            return
        if isinstance(error, LedgerError):
            causes = sorted(world.model.stream(OUT).causes)
        elif not streams:
            world.fail(f"names no stream | {shape(error)}", text)
        forgiven = sorted({cause for name in streams for cause in world.model.stream(name).forgiven})
        if not causes and forgiven:
            world.fail(f"named again | {shape(error)} | after {'+'.join(forgiven)} | {query.mode}", text)
        elif not causes and not self._is_left_by_a_run_with_a_list(text, streams):
            world.fail(f"false alarm | {shape(error)} | {query.mode}", text)
        # Documented: where others read from it, a group is not set to the checkpoint.
        stuck_with_others = re.search("reads from (it|the group), too|A query with noAck cannot read them", text)
        if query.is_lenient and not isinstance(error, (GroupSharedError, LedgerError)) and not stuck_with_others:
            world.fail(f"a lenient query stops | {shape(error)} | after {'+'.join(causes)} | {query.mode}", text)
        for name in streams:
            self._name(name)
        if any("flushed" in world.model.stream(name).causes for name in streams):
            for name in world.names():  # it is empty: one name says it
                self._name(name)
        self._count(error, streams)
        self._mend(error, text, streams)

    def _is_left_by_a_run_with_a_list(self, text: str, streams: list[str]) -> bool:
        """Documented: with noAck a query does not read what a run without it has reserved of a stream that the
        checkpoint does not name yet."""
        query = self._world.query
        if query.was_limited and "it holds entries that an earlier run of this query has yet to read" in text:
            return query.had_a_list  # a batch that killed the query was cut: its pieces wait for a run without noAck
        had_a_list = query.had_a_list and "or a run without noAck left them" in text
        return had_a_list and not any(self._world.model.stream(name).known for name in streams)

    def at_peace(self) -> None:
        """Errors from before count no more."""
        self._told.clear()

    def _count(self, error: RStreamError, streams: list[str]) -> None:
        what = shape(error) + " ".join(streams)
        self._told.append((self._world.model.happened, what))
        if self._told.count(self._told[-1]) > _MOST:
            self._world.fail(f"stuck | {shape(error)} | {self._world.query.mode}", error.message)
            self._begin_anew()

    def _name(self, name: str) -> None:
        """The loss of what is gone by now, or passed over by the group, has been told."""
        world = self._world
        seen = world.see(name)
        ours, logged = set(seen.ours()), id_key(world.query.logged(name))
        position = id_key(seen.position) if seen.position is not None else logged
        for one in world.model.of(name):
            passed = one.key <= position and (one.id not in ours or one.key <= logged)
            if world.model.is_due(one) and (one.gone or passed):
                one.named = True

    # -- remedies ------------------------------------------------------------------------------------------------

    def _mend(self, error: RStreamError, text: str, streams: list[str]) -> None:
        remedies = []
        if isinstance(error, LedgerError):
            self._mend_ledger(text)
            return
        if "failOnDataLoss=false" in text and not self._world.query.is_lenient:
            remedies += [self._allow_losses, self._allow_losses]
        if "new checkpoint" in text:
            remedies.append(self._begin_anew)
        if "rstream groups seek" in text or "rstream groups create" in text:
            remedies.append(lambda: self._set_group(streams))
        if "rstream groups delete" in text:
            remedies.append(lambda: self._remove(text, streams))
        if "rstream groups ack" in text:
            remedies.append(lambda: self._acknowledge(streams))
        if "without noAck" in text:
            remedies.append(self._list_pending)
        if _GOES_ON in text or "started again" in text:
            remedies.append(lambda: self._world.tell("   operator: just once more"))
        if not remedies:
            self._world.fail(f"no remedy | {shape(error)}", text)
            remedies.append(self._begin_anew)
        self._world.chance.choice(remedies)()

    def _mend_ledger(self, text: str) -> None:
        """What the sink's errors say (sink/ledger/refusals.py)."""
        world = self._world
        remedies = []
        if found := re.search(r"HSET (\S+) lossy (\d+):any on the sink's server", text):
            remedies.append(lambda: self._stay_with(found[1], found[2]))
        if done := re.search(r"HSET (\S+) (\S+) (\d+) to go on", text):
            remedies.append(lambda: world.client.hset(done[1], done[2].strip('"'), done[3]))
        if "use the newer checkpoint" in text and world.query.newest is not None:
            remedies.append(world.query.put_back)
        if "with delivery=at-least-once writes" in text:
            remedies.append(self._write_anew)
        if (
            "start the query again" in text.lower()
            or "another attempt" in text
            or ("stood still" in text and not remedies)
        ):
            remedies.append(lambda: None)
        if not remedies:
            world.fail("no remedy | LedgerError", text)
            return
        remedy = world.chance.choice(remedies)
        world.tell(f"   operator: {getattr(remedy, '__name__', '')}: {text[-160:]}")
        remedy()

    def _stay_with(self, key: str, batch: str) -> None:
        """What was written of the batch stays, and the rows that it has now are not written."""
        self._world.client.hset(key, "lossy", f"{batch}:any")
        written, begun = {row.value[1] for row in self._world.sink.rows()}, self._world.query.begin_of(int(batch))
        for one in self._world.model.entries.values():
            one.excuses.add("the operator stays with what was written")
            if one.n in written and one.key > id_key(begun.get(one.stream, "0-0")):  # a later batch may have it now
                one.again.add("the operator stays with what was written")

    def _write_anew(self) -> None:
        world = self._world
        world.sink.delivery = "at-least-once"
        for one in world.model.entries.values():
            one.again.add("written at least once")

    def _allow_losses(self) -> None:
        query = self._world.query
        query.lenient, query.strict_again = True, self._world.chance.random() < 0.3
        self._world.tell(f"   operator: failOnDataLoss=false{' until it is idle' if query.strict_again else ''}")

    def _begin_anew(self) -> None:
        """A new checkpoint: what was not settled comes again, and what the old one alone knew of is given up."""
        world, model = self._world, self._world.model
        world.tell("   operator: a new checkpoint")
        world.query.begin_anew()
        world.births.anew()
        for name, stream in model.streams.items():
            seen = world.see(name)
            ours, here = set(seen.ours()), set(seen.ids)
            position = None if seen.position is None else id_key(seen.position)
            for one in model.of(name):
                # What the group had passed, the query may have removed (onCommit).
                waiting = one.id in here and (position is None or one.key > position or one.id in ours)
                if waiting:
                    one.again.add("a new checkpoint")
                if model.is_due(one) and (one.gone or not waiting):
                    one.settled = True
            stream.counted = 0
            stream.causes.add(OTHER_CHECKPOINT)

    def _set_group(self, streams: list[str]) -> None:
        """rstream groups create or seek, to the checkpoint's position."""
        world = self._world
        for name in streams:
            at = world.query.logged(name)
            world.tell(f"   operator: sets the group of {name} to {at}")
            seen = world.see(name)
            if seen.position is None:
                world.client.xgroup_create(name, GROUP, id=at, mkstream=True)
            else:
                world.client.xgroup_setid(name, GROUP, id=at)

    def _remove(self, text: str, streams: list[str]) -> None:
        """rstream groups delete --consumer: refused while entries are pending for it."""
        found = re.search(r"--consumer (\S+)", text)
        assert found is not None, text
        for name in streams:
            if found[1] in self._world.see(name).pending.values():
                self._world.tell(f"   operator: consumer {found[1]} of {name} has pending entries: it stays")
                self._list_pending()
            else:
                self._world.tell(f"   operator: deletes consumer {found[1]} of {name}")
                self._world.client.xgroup_delconsumer(name, GROUP, found[1])

    def _acknowledge(self, streams: list[str]) -> None:
        """rstream groups ack: the entries need not be read."""
        for name in streams:
            ours = self._world.see(name).ours()
            self._world.tell(f"   operator: acknowledges {len(ours)} entries of {name}")
            self._world.model.excuse(self._world.model.of(name, ours), "acknowledged by the operator")
            if ours:
                self._world.client.xack(name, GROUP, *ours)

    def _list_pending(self) -> None:
        self._world.tell("   operator: without noAck")
        self._world.query.options = {k: v for k, v in self._world.query.options.items() if k != "noAck"}
