"""Queries on another machine, which the driver's machine cannot look at: their leases, renewed as long as they live."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from spark_streams.connector.errors import ConsumerTakenError, RStreamError
from spark_streams.connector.source.group.streams import ConsumerLease
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.lease import TTL, Processes
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.threads import PATIENCE, TERMS
from tools.simulation.world import CONSUMER, GROUP, World

_RENEWAL = TTL / 3000  # seconds
_FIRST = 3_000_000  # more than any number of a process on the driver's machine


class _OtherMachine(Processes):
    def __init__(self, pid: int, living: Sequence[Holder]) -> None:
        self._pid = pid
        self._living = living

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def space(self) -> str:
        return "elsewhere"

    def this(self) -> dict[str, str | int]:
        return {"host": "elsewhere", "space": self.space, "pid": self.pid, "born": self.born(self.pid)}

    def born(self, pid: int) -> str:
        return "1" if pid == self.pid or any(holder.pid == pid for holder in self._living) else ""


@dataclass(frozen=True)
class Holder:
    """A process that has the lease of a consumer. since: number of triggers of the query when it began."""

    consumer: str
    pid: int
    since: int


class Elsewhere:
    """The queries on the other machine. Only a server of kind `process` has the plan's clock, on which sessions end: on
    others there are none."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun = _FIRST
        self._renewed = 0.0
        self._sessions = set[str]()  # renewed by those who live, and by the query while another process waits for it
        self._theirs: dict[str, str] = {}  # of a claim: its entries that are pending for a query that lives
        self.living: list[Holder] = []
        self._forgotten = 0  # how often

    def begin(self, consumer: str, streams: Collection[str]) -> bool:
        """Start a query with this consumer. Return whether it has the leases: it waits for those of others until it
        sees that they live, or that their session is over."""
        world = self._world
        if not isinstance(world.server, ProcessServer) or world.network.is_disturbed or not streams:
            return False
        self._begun += 1
        forgotten = self._forgotten
        address = replace(Address.parse(world.server.url), patience=PATIENCE)
        processes = _OtherMachine(self._begun, self.living)
        lease = ConsumerLease(address, GROUP, consumer, replace(TERMS, processes=processes))
        others = self._sessions_of(streams, CONSUMER, world.process) if world.query.running else set()
        others -= self._sessions  # another process may wait for it, too
        self._sessions |= others
        self._renewed = 0.0  # a thread of the query has renewed it also while a reply was late
        self._renew()
        try:
            with connect(address) as server:
                lease.hold(server, sorted(streams))
        except ConsumerTakenError:
            return False
        except RStreamError as error:
            world.tell(f"      {error}")
            return False
        finally:
            self._sessions -= others
        if forgotten < self._forgotten:
            return False
        self.living.append(Holder(consumer, processes.pid, world.query.triggers))
        self._sessions |= self._sessions_of(streams, consumer, processes.pid)
        return True

    def end(self, holder: Holder) -> None:
        """Kill a process: its session lasts until it is over."""
        self.living.remove(holder)
        self._sessions -= self._sessions_of(self._world.names(), holder.consumer, holder.pid)

    def end_all(self) -> None:
        """Kill all of them."""
        for holder in [*self.living]:
            self.end(holder)

    def forget(self) -> None:
        """Take no notice of them any more: the server may have lost their leases."""
        self.living.clear()
        self._sessions.clear()
        self._forgotten += 1

    def has_lease(self, streams: Iterable[str]) -> bool:
        """Whether a process that lives has the lease of the query's consumer on one of these streams."""
        pids = {holder.pid for holder in self.living if holder.consumer == CONSUMER}
        return any(self._sessions_of(streams, CONSUMER, pid) for pid in pids)

    def pass_time(self, seconds: float) -> None:
        """Move the plan's clock. Those who live renew their sessions meanwhile."""
        assert isinstance(self._world.server, ProcessServer)
        clock = self._world.server.core.clock
        while self._sessions and seconds > _RENEWAL:
            clock.sleep(_RENEWAL)
            seconds -= _RENEWAL
            self._renew()
        clock.sleep(seconds)
        if self._sessions:
            self._renew()

    def _renew(self) -> None:
        now = time.monotonic()
        if now - self._renewed >= _RENEWAL:
            self._renewed = now
            for session in sorted(self._sessions):
                self._world.client.pexpire(session, TTL)

    def claims(self, stream: str, ids: Iterable[str]) -> None:
        """Note which of these entries, which the query is about to claim, are pending for a query that lives and reads
        the stream."""
        self._theirs.clear()
        for holder in self.living:
            reads = bool(self._sessions_of([stream], holder.consumer, holder.pid))
            if reads and holder.consumer != CONSUMER and holder.since < self._world.query.triggers:
                theirs = {*self._world.see(stream).of_consumer(holder.consumer)}
                self._theirs |= dict.fromkeys(theirs.intersection(ids), holder.consumer)

    def has_claimed(self, stream: str, ids: Iterable[str]) -> None:
        """Check that a claim has taken none of these: it may have been refused (WATCH)."""
        if self._theirs and (taken := sorted(self._theirs.keys() & {*self._world.see(stream).of_consumer(CONSUMER)})):
            details = f"{taken} of {stream} were pending for {self._theirs[taken[0]]}, which lives"
            self._world.fail(f"claimed from a running query | {self._world.query.mode}", details)

    def _sessions_of(self, streams: Iterable[str], consumer: str, pid: int) -> set[str]:
        """Return the sessions of this process on these streams."""
        values = [self._world.client.get(lease_key(name, GROUP, consumer)) for name in streams]
        leases = [json.loads(value) for value in values if value]
        return {lease["session"] for lease in leases if lease["pid"] == pid}
