"""What goes wrong in one step of lives.py: connections that are cut, a process that dies, others who are at it, too.

A process that dies is a connection that is cut and none that gets through after it: that is all that a server sees.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.redrive import RedriveLease
from spark_streams.connector.errors import RedriveTakenError, RStreamError
from spark_streams.connector.keys import SESSIONS
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from spark_streams.connector.wire.replies import pairs

if TYPE_CHECKING:
    from tests.connector.deadletter.lives import Lives

FOREIGN = b"foreign"  # the field of an entry among the letters that is none
_DEAD, _RETRY = "dead", "retry"


class Killed(BaseException):
    """The process that a step stands for has died."""


class Faults:
    """Of one step, by the run's chance; a context manager. told: which.

    Between two tries the product sleeps by `Faults.pause`: there a process notices that it is dead.
    """

    current: Faults | None = None

    def __init__(self, lives: Lives, step: str) -> None:
        self._lives, self._chance, self._proxy = lives, lives.chance, lives.proxy
        self._step = step
        self._before = self._proxy.connections
        self._pauses = 0
        self._pieces = 0
        self._disturbed = False
        self._over = False
        self._lock = threading.Lock()
        self.told = ""
        self._cut()
        self._disturb(step)

    def __enter__(self) -> Faults:
        Faults.current = self
        return self

    def __exit__(self, *_: object) -> None:
        """The next step has a fresh start; the lease of a process that died is free, as the next one would find."""
        Faults.current = None
        proxy, direct = self._proxy, self._lives.direct
        with self._lock:
            self._over = True
        proxy.wait_for_late()
        proxy.refuse, proxy.when_cut = False, lambda: None
        proxy.forget_cuts()
        proxy.cut_all()
        direct.execute("CONFIG", "SET", "maxmemory", "0")
        direct.execute("DEL", RedriveLease(self._lives.address, "redrive").key_of(_DEAD))
        for session in direct.execute("KEYS", f"{SESSIONS}*"):  # they would expire after ten seconds
            direct.execute("DEL", session)
        if direct.execute("TYPE", _RETRY) == b"string":
            direct.execute("DEL", _RETRY)
        self._give_ids_back(direct)

    @staticmethod
    def pause(seconds: float) -> None:
        """Stands in for time.sleep between two tries."""
        now = Faults.current
        if now is not None:
            if now._proxy.refuse:
                raise Killed
            now._pauses += 1
            if now._pauses == 3:
                now._lives.direct.execute("CONFIG", "SET", "maxmemory", "0")
        time.sleep(min(seconds, 0.002))

    def may_end_it(self, error: RStreamError) -> bool:
        """Whether a step may end with this error. Connections that break are waited for, once there was one."""
        if isinstance(error, RedriveTakenError):
            return False
        return self._disturbed or (self._step in ("collect", "bury") and self._proxy.connections - self._before < 2)

    # -- connections ------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        chance = self._chance
        kind = chance.choices(["", "cut", "killed"], [2, 5, 3])[0]
        for _ in range(chance.randint(1, 4) if kind == "cut" else bool(kind)):
            direction = chance.choice(["up", "down", "late"])
            ends = self._ends("down" if direction == "down" else "up")
            later = ends[min(4, len(ends) - 1) :] if chance.random() < 0.8 else ends  # than a connection's first words
            border = chance.choice(later) + chance.randint(-2, 2)  # of what was sent together
            after = max(1, chance.choice([border, chance.randint(min(later), ends[-1] + 200)]))
            self._proxy.cut(direction, after)
            self.told += f"{kind} {direction} at {after}, "
        if kind == "killed":
            self._proxy.when_cut = self._die

    def _ends(self, direction: str) -> list[int]:
        """Where the pieces of a connection ended that did something."""
        known = [passed[direction] for passed in self._proxy.passed if len(passed[direction]) > 8]
        return self._chance.choice(known or [[0, 100, 300]])

    def _die(self) -> None:
        self._proxy.refuse = True

    # -- others -----------------------------------------------------------------------------------------------------

    def _disturb(self, step: str) -> None:
        """Somebody does something before a piece of the step's requests arrives, or before each."""
        chance = self._chance
        acts: dict[str, Callable[[Connection], object]] = {
            "others append": self._append,
            "others delete a letter": self._delete,
            "ids run out": self._use_up_ids,
            "memory is full": self._fill_memory,
        }
        acts |= {"bury": {"others give up the same": self._lives.give_up}}.get(step, {})
        acts |= {"redrive": {"no stream there": self._take_place}}.get(step, {})
        if chance.random() < 0.4:
            return
        self._disturbed = True
        name = chance.choice(list(acts))
        # A letter that somebody deletes again and again may be moved all the same (RedriveReport.vanished).
        at = {chance.randint(1, 12)} if chance.random() < 0.7 or name == "others delete a letter" else set(range(1, 50))
        self.told += f"{name} at {min(at)}{'+' if len(at) > 1 else ''}"

        def meanwhile(direction: str) -> None:
            with self._lock:
                self._pieces += direction == "up"
                if direction == "up" and self._pieces in at and not self._over:
                    with Connection(Address.parse(self._lives.url)) as other:
                        acts[name](other)

        self._proxy.meanwhile = meanwhile

    def _append(self, other: Connection) -> None:
        other.pipeline([("XADD", stream, "*", FOREIGN, "1") for stream in (_DEAD,)])

    def _delete(self, other: Connection) -> None:
        for entry, words in other.execute("XRANGE", _DEAD, "-", "+"):
            if words[0] != FOREIGN:
                self._lives.by_hand[int(words[1])] += other.execute("XDEL", _DEAD, entry)
                break

    def _use_up_ids(self, other: Connection) -> None:
        """By an entry: XSETID is not noticed by WATCH."""
        last = StreamId(MAX_ID.ms, MAX_ID.seq - self._chance.randint(0, 3))
        other.pipeline([("XADD", _DEAD, str(last), FOREIGN, "1")])

    def _fill_memory(self, other: Connection) -> None:
        if self._pauses < 3:
            other.execute("CONFIG", "SET", "maxmemory", "1")

    def _take_place(self, other: Connection) -> None:
        """Where entries are to go there is something else, if there was nothing."""
        other.execute("SET", _RETRY, "text", "NX")

    @staticmethod
    def _give_ids_back(direct: Connection) -> None:
        if direct.execute("TYPE", _DEAD) != b"stream":
            return
        last = StreamId.parse(pairs(direct.execute("XINFO", "STREAM", _DEAD))[b"last-generated-id"])
        if last.ms == MAX_ID.ms:  # dead letters keep their IDs: a page of them may be on its way
            entries = direct.execute("XRANGE", _DEAD, "-", "+")
            ids = [b"*" if StreamId.parse(entry).ms == MAX_ID.ms else entry for entry, _ in entries]
            direct.execute_all([
                ("DEL", _DEAD), ("XGROUP", "CREATE", _DEAD, "g", "0", "MKSTREAM"),
                *[("XADD", _DEAD, entry, *words) for entry, (_, words) in zip(ids, entries, strict=True)],
            ])  # fmt: skip
