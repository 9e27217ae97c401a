"""The engine's command core, called by lines instead of sockets, and the digest of what it was asked and has said."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Iterator

import hiredis

from spark_streams.engine.client import Client
from spark_streams.engine.commands import new_engine
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.request_parser import Request
from spark_streams.engine.resp.wire_replies import Reply, encode
from spark_streams.engine.resp.xadd_batch import Shapes
from tools.simulation.in_process.refusals import Refusals

CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "sleep")  # of module time
COMMAND_NS = 50_000
_BEGIN = 1_700_000_000_000_000_000  # Unix time, nanoseconds


class PlanClock:
    """Replaces the functions of module `time` for engine and product. The monotonic clock begins at 1,000 s.

    command_ns: time that a request takes; server_ahead: nanoseconds by which the server's clock is ahead of this one,
    negative: behind; set_back: nanoseconds by which it was set back in all; shown: the latest Unix time in milliseconds
    that it had shown when it was set back.
    """

    def __init__(self) -> None:
        self.reset()

    @contextlib.contextmanager
    def in_charge(self) -> Iterator[None]:
        """Replace the clocks of module `time` while a plan runs. Between two plans other modules wait in real time."""
        real = {name: getattr(time, name) for name in CLOCKS}
        try:
            for name in CLOCKS:
                setattr(time, name, getattr(self, name))
            yield
        finally:
            for name, function in real.items():
                setattr(time, name, function)

    def reset(self) -> None:
        """Return to the first moment, and to one clock."""
        self._nanoseconds = self.server_ahead = self.set_back = self.shown = 0
        self.command_ns = COMMAND_NS

    @property
    def moment(self) -> int:
        """Nanoseconds since the first moment."""
        return self._nanoseconds

    def return_to(self, moment: int) -> None:
        """Return to an earlier moment: what has happened since took no time."""
        self._nanoseconds = moment

    def pass_ns(self, nanoseconds: int) -> None:
        """Move the time on."""
        self._nanoseconds += nanoseconds

    def sleep(self, seconds: float) -> None:
        """time.sleep: the time is over at once."""
        self._nanoseconds += round(seconds * 1e9)

    def monotonic(self) -> float:
        """time.monotonic and time.perf_counter."""
        return 1_000 + self._nanoseconds / 1e9

    def monotonic_ns(self) -> int:
        """time.monotonic_ns and time.perf_counter_ns."""
        return 1_000_000_000_000 + self._nanoseconds

    perf_counter, perf_counter_ns = monotonic, monotonic_ns

    def time(self) -> float:
        """time.time."""
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        """time.time_ns."""
        return _BEGIN + self._nanoseconds

    def unix_ms(self) -> int:
        """The clock of the engine, Unix milliseconds."""
        return (self.time_ns() + self.server_ahead) // 1_000_000

    def move_server(self, seconds: float) -> None:
        """Set the server's clock ahead, or back (negative)."""
        moved = round(seconds * 1e9)
        self.shown = max(self.shown, self.unix_ms())
        self.server_ahead += moved
        self.set_back += max(-moved, 0)


# -- the core ----------------------------------------------------------------------------------------------------------


_ALL = 1 << 62  # bytes of replies: no request is left for another turn
_ADDRESS = "127.0.0.1:1"


class Line:
    """One client's connection: what it sends runs at once, the replies wait in `inbox`.

    number: the client's ID, as fileno and in the digest; is_cut: broken by the network or closed by one of the ends.
    """

    def __init__(self, core: Core, client: Client) -> None:
        self.core = core
        self.number = client.id
        self.client = client
        self._reader = hiredis.Reader()  # four times as fast as the engine's parser, whose tests are elsewhere
        self._backlog: list[Request] = []  # behind a command that blocks
        self.inbox = bytearray()
        self.is_cut = False

    def send(self, data: bytes) -> None:
        """Run these requests. Raises BrokenPipeError if the connection is broken."""
        if self.is_cut:
            raise BrokenPipeError("Broken pipe")
        self._reader.feed(data)
        while (request := self._reader.gets()) is not False:
            self._backlog.append(request)
        self.core.digest.update(b"%d<%b" % (self.number, data))
        self.go_on()

    def go_on(self) -> None:
        """Run the requests that wait, unless the client is blocked."""
        if self.client.waiter is None and self._backlog:
            requests, self._backlog = self._backlog, []
            out: list[bytes] = []
            done = self.core.run(self.client, requests, out)
            self._backlog = requests[done:]
            self.deliver(b"".join(out))
            if self.client.closing:
                self.is_cut = True

    def deliver(self, reply: bytes) -> None:
        """Take bytes from the server."""
        self.core.digest.update(b"%d>%b" % (self.number, reply))
        self.inbox += reply

    def cut(self) -> None:
        """Break the connection: replies that were not read are lost, and the server forgets the client."""
        if not self.is_cut:
            self.is_cut = True
            self.inbox.clear()
            self._backlog.clear()
            self.core.forget(self)

    def shutdown(self, _how: int) -> None:
        """Break it, as socket.shutdown does."""
        self.cut()

    def fileno(self) -> int:
        """A number that no other line has."""
        return self.number


class Core:
    """One engine at a time: `begin` starts another one, whose clients are all new.

    chance: random numbers for the product (tokens, pauses), which the plan's seed decides; others: further servers of
    the plan, by URL.
    """

    def __init__(self, clock: PlanClock | None = None) -> None:
        """clock: of the plan, if that has another server."""
        self.clock = PlanClock() if clock is None else clock
        self.others: dict[str, Core] = {}
        self.chance = random.Random()
        self._begin_engine(0)

    def begin(self, seed: int) -> None:
        """Start an empty engine at the first moment."""
        self.clock.reset()
        self._begin_engine(seed)

    def _begin_engine(self, seed: int) -> None:
        self.chance.seed(seed)
        self.digest = hashlib.blake2b(b"%d" % seed, digest_size=8)
        self.engine: Engine = new_engine(self.clock.unix_ms)
        self.engine.run_id = "0" * 40
        self.engine.shapes = Shapes()
        self.engine.send, self.engine.disconnect = self._send, self._disconnect
        self.lines: dict[int, Line] = {}
        self.refusals = Refusals(self.engine, lambda client: client.id in self.lines)
        self._unblocked: list[Line] = []
        self.others.clear()

    def another(self, url: str) -> Core:
        """Start one more server with this URL: an empty engine on the same clock."""
        self.others[url] = Core(self.clock)
        return self.others[url]

    def at(self, url: str) -> Core:
        """Return the server with this URL: this one, unless another one has it."""
        return self.others.get(url, self)

    def digest_so_far(self) -> int:
        """Return the digest of all commands and replies since `begin`, 64 bits. Those of other servers are added."""
        own = int.from_bytes(self.digest.digest())
        return (own + sum(other.digest_so_far() for other in self.others.values())) % (1 << 64)

    def token_hex(self, size: int = 32) -> str:
        """secrets.token_hex."""
        return self.chance.randbytes(size).hex()

    def connect(self) -> Line:
        """Return a new connection."""
        line = Line(self, self.engine.connect(_ADDRESS, _ADDRESS))
        self.lines[line.number] = line
        return line

    def run(self, client: Client, requests: list[Request], out: list[bytes]) -> int:
        """Run requests at the next moment. Return the index after the last; it is less if one blocks."""
        self.clock.pass_ns(self.clock.command_ns)
        self.engine.tick()
        done = self.engine.run(client, requests, out, _ALL)
        self._go_on()
        return done

    def wait(self, seconds: float) -> None:
        """Let time pass until a blocked command is over, at most so long."""
        engine, begin = self.engine, self.clock.time_ns()
        end = begin + round(seconds * 1e9)
        deadline = engine.waiters.next_deadline()
        moment = end if deadline is None else min(end, max(begin, deadline * 1_000_000 - self.clock.server_ahead))
        self.clock.pass_ns(moment - begin)
        self.expire()

    def expire(self) -> None:
        """End the blocked commands whose time is over."""
        self.engine.waiters.expire(self.engine.tick())
        self._go_on()

    def forget(self, line: Line) -> None:
        """Remove a connection. An earlier engine's are gone."""
        if self.lines.get(line.number) is line:
            del self.lines[line.number]
            self.engine.forget(line.client)

    def _go_on(self) -> None:
        """Run what waits behind commands that are no longer blocked; it may unblock others."""
        while self._unblocked:
            self._unblocked.pop(0).go_on()

    def _send(self, client: Client, reply: Reply) -> None:
        """Deliver the reply to a command that was blocked."""
        if (line := self.lines.get(client.id)) is not None:
            line.deliver(encode(reply, client.resp))
            self._unblocked.append(line)

    def _disconnect(self, client: Client) -> None:
        if (line := self.lines.get(client.id)) is not None:
            line.cut()
