"""Entries and what becomes of them, at random: given up, sent back, deleted, while connections break and processes
die.

Each entry is in one place at any moment: to be processed (in stream `s`, not acknowledged), a letter (in `dead`),
parked (in `dead:parked`), sent elsewhere (in `retry`), or deleted by a purge or by hand. An entry is acknowledged
exactly where its letter exists. All are looked at after each step; faults.py is what goes wrong in a step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from spark_streams.base.ids import StreamId
from spark_streams.connector.deadletter.envelope import MARK, RedriveMark, open_envelope
from spark_streams.connector.deadletter.letter_page import Criteria
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive, purge
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.keys import origin_field
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.pending.claim import DeadEntries, dead_letter
from spark_streams.connector.source.task.notes import LetterDestination, collect, notes_key
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.connector.wire.replies import pairs
from spark_streams.connector.wire.session import Session
from tests.connector.deadletter.faults import FOREIGN, Faults, Killed
from tests.connector.deadletter.making import SMALL
from tests.proxy import Proxy
from tools.servers.server import Server

DEAD, PARKED, RETRY = "dead", "dead:parked", "retry"
FEW = replace(SMALL, post_entries=6, post_bytes=7_000)  # letters at a time
OF_THE_QUERY = replace(LIMITS, dead_letters=FEW)
MEMBER = Membership("g", "spark")
NOTES = notes_key("s", MEMBER)
REASONS = ("decode", "deliveries")


@dataclass
class Places:
    """Where the entries are now: per number, how often. letters: what each letter's envelope says."""

    alive: Counter[int] = field(default_factory=Counter)
    moving: Counter[int] = field(default_factory=Counter)
    dead: Counter[int] = field(default_factory=Counter)
    parked: Counter[int] = field(default_factory=Counter)
    retried: Counter[int] = field(default_factory=Counter)
    letters: dict[int, dict[str, str]] = field(default_factory=dict)


class Lives:
    """One run on an empty server. told: what was done, for the message of a failure."""

    def __init__(self, server: Server, proxy: Proxy, seed: int) -> None:
        self.url = server.url
        self.proxy = proxy
        self.chance = random.Random(seed)
        self.direct = Connection(Address.parse(server.url))
        self.address = replace(Address.parse(proxy.url), patience=Patience(sleep=Faults.pause))
        self.told: list[str] = []
        self.fields: dict[int, list[bytes]] = {}
        self.deleted: Counter[int] = Counter()
        self.by_hand: Counter[int] = Counter()  # letters that somebody deleted in this step
        self._redrives: Counter[int] = Counter()
        self._options: RedriveOptions | None = None  # of a redrive that did not come to its end
        self._dead_entries: DeadEntries | None = None
        self.direct.execute("FLUSHALL")
        for stream in ("s", DEAD):
            self.direct.execute("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
        for n in range(self.chance.randint(3, 25)):
            noise = self.chance.randbytes(self.chance.choice([0, 3, 30, 3000]))
            self.fields[n] = [b"n", b"%d" % n, b"raw", noise, b"n", b""]
            self.direct.execute("XADD", "s", "*", *self.fields[n])

    def run(self, steps: int) -> None:
        """Some steps at random, then everything to its end without any fault."""
        acts: list[Callable[[], None]] = [self.collect, self.bury, self.redrive, self.purge]
        for _ in range(steps):
            self.proxy.wait_for_late()
            self._deliver()
            act = self.chance.choices(acts, [3, 3, 4, 1])[0]
            before = self.places()
            with Faults(self, act.__name__) as faults:
                self.told.append(f"{act.__name__}: {faults.told}")
                try:
                    act()
                except Killed:
                    self.told[-1] += " → killed"
                except RStreamError as error:
                    self.told[-1] += f" → {error}"
                    if not faults.may_end_it(error):
                        raise
            self._check(before)
        self.told.append("the end")
        self._deliver()
        self._collect_noted()
        before = self.places()
        report = DeadLetterRedrive(self.address, RedriveOptions(DEAD, max_redrives=1 << 30), limits=FEW).run()
        assert report.moved + (0 if report.goes_on else report.moved_before) == before.dead.total()
        self._check(before)
        assert not self.places().dead
        keys = self.direct.execute("KEYS", "rstream:*")
        fields = {(field, value) for key in keys for field, value in pairs(self.direct.execute("HGETALL", key)).items()}
        left = {field for field, note in fields if note or not field.startswith(b"t letter")}
        assert left <= {origin_field("s", "g")}

    # -- what is done -----------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """What is new in the stream is given to one of two consumers."""
        consumer = self.chance.choice(["spark", "bob"])
        self.direct.execute("XREADGROUP", "GROUP", "g", consumer, "STREAMS", "s", ">")

    def collect(self) -> None:
        """Tasks have noted entries that do not fit; the driver makes letters of them, as one that starts again does."""
        noted = self._noted()
        for entry, consumer, _, _ in self._pending():
            if consumer == b"spark" and entry not in noted and self.chance.random() < 0.5:
                [[_, words]] = self.direct.execute("XRANGE", "s", entry, entry)
                note = pack("query", "7", "now", "why", *words)
                self.direct.execute("HSET", NOTES, b"t letter " + entry, note)
        if self.chance.random() < 0.3:
            self.direct.execute("HSET", NOTES, "void letter 1-0", "x")  # of a run that wrote no batch
        self._collect_noted()

    def _collect_noted(self) -> None:
        self._as_driver(
            lambda server: collect(GroupClient(server, MEMBER, OF_THE_QUERY), ["s"], "t", LetterDestination(DEAD))
        )
        assert not self._noted()

    def bury(self) -> None:
        """Entries that a consumer has had too often are given up."""
        noted = self._noted()
        consumer = self.chance.choice([b"spark", b"bob"])
        some = [one for one in self._pending() if one[1] == consumer and one[0] not in noted]
        some = [one for one in some if self.chance.random() < 0.7]
        ids = [StreamId.parse(entry) for entry, _, _, _ in some]
        self._dead_entries = DeadEntries("s", consumer.decode(), ids, [deliveries for _, _, _, deliveries in some])
        self._as_driver(self.give_up)

    def give_up(self, server: Connection) -> None:
        """What this step gives up."""
        if self._dead_entries is not None:
            dead_letter(server, "g", self._dead_entries, DEAD, FEW)

    def _as_driver(self, step: Callable[[Connection], object]) -> None:
        driver = Session(self.address, "the driver", is_known=True)
        try:
            driver.get()
            driver.run(step)
        finally:
            driver.close()

    def redrive(self) -> None:
        """Letters go back, some or all; one that was killed is started again, or another one begins."""
        if self._options is None or self.chance.random() < 0.3:
            to = self.chance.choice([None, None, None, RETRY])
            limit = self.chance.choice([None, self.chance.randint(1, 20)])
            self._options = RedriveOptions(
                DEAD, self._criteria(), to, limit, max_redrives=self.chance.choice([1, 2, 5])
            )
        self.told[-1] += f" {self._options}"
        before = self.places()
        report = DeadLetterRedrive(self.address, self._options, limits=FEW).run(dry_run=self.chance.random() < 0.1)
        after = self.places()
        limit, self._options = self._options.limit, None
        if not report.dry_run:
            gone, by_hand = (before.dead - after.dead).total(), self.by_hand.total()
            others = 0 if report.goes_on else report.moved_before  # of a redrive with other options
            told = (report.moved + report.parked + others, report.parked, report.moved_before)
            # a letter that somebody deletes may have been moved before
            assert gone - by_hand <= told[0] <= gone, (told, gone, by_hand)
            assert told[1] == after.parked.total() - before.parked.total(), (told, before.parked, after.parked)
            earlier = report.moved_before if report.goes_on else 0
            assert limit is None or report.moved + report.parked + earlier <= limit, (told, limit)

    def purge(self) -> None:
        """Letters are deleted, some or all."""
        criteria, limit = self._criteria(), self.chance.choice([None, self.chance.randint(1, 10)])
        reasons = criteria.reasons or REASONS
        self.told[-1] += f" {reasons} {limit}"
        before = self.places()
        try:
            done = purge(self.address, DEAD, criteria, limit, limits=FEW)
        finally:
            self.proxy.wait_for_late()
            after = self.places()
            gone = before.dead - after.dead - self.by_hand
            self.deleted += gone - before.moving
            # of a letter that a redrive has moved and not deleted yet, `letters` has no envelope
            assert all(before.letters[n]["reason"] in reasons for n in gone - before.moving)
            assert limit is None or gone.total() <= limit
        assert gone.total() <= done.deleted <= gone.total() + self.by_hand.total()
        assert limit is not None or not any(after.letters[n]["reason"] in reasons for n in after.dead)

    def _criteria(self) -> Criteria:
        return self.chance.choice([Criteria(), Criteria(), *[Criteria(reasons=(reason,)) for reason in REASONS]])

    # -- what is there ----------------------------------------------------------------------------------------------

    def places(self) -> Places:
        """Where everything is."""
        found = Places()
        [group] = [pairs(one) for one in self.direct.execute("XINFO", "GROUPS", "s")]
        position = StreamId.parse(group[b"last-delivered-id"])
        pending = {entry for entry, _, _, _ in self._pending()}
        for entry, words in self._entries("s"):
            n = self._same(words)
            if entry in pending or StreamId.parse(entry) > position:
                found.alive[n] += 1
        keys = self.direct.execute("KEYS", "rstream:redriven:*")
        moving = {entry for key in keys for entry in self.direct.execute("HKEYS", key)}
        for stream, places in ((DEAD, found.dead), (PARKED, found.parked)):
            for entry, words in self._entries(stream):
                if words[0] != FOREIGN:
                    original, envelope = open_envelope(words)
                    places[self._same(list(original))] += 1
                    if stream == DEAD and entry in moving:
                        found.moving[int(words[1])] += 1
                    else:
                        found.letters[int(words[1])] = envelope
        for _, words in self._entries(RETRY):
            found.retried[self._same(words)] += 1
        return found

    def _entries(self, stream: str) -> list[Any]:
        found: list[Any] = []
        if self.direct.execute("TYPE", stream) == b"stream":
            found = self.direct.execute("XRANGE", stream, "-", "+")
        return found

    def _pending(self) -> list[Any]:
        """(id, consumer, idle, deliveries)."""
        found: list[Any] = self.direct.execute("XPENDING", "s", "g", "-", "+", 10_000)
        return found

    def _noted(self) -> set[bytes]:
        """Ids of entries for which there is a note. One whose dead letter is there is empty."""
        notes = pairs(self.direct.execute("HGETALL", NOTES))
        return {name.split()[-1] for name, note in notes.items() if note and name.startswith(b"t letter")}

    def _same(self, words: list[bytes]) -> int:
        """The number of an entry, whose fields are the ones it always had, and the mark of its ways back."""
        n = int(words[1])
        if words != self.fields[n]:
            assert words[:-2] == self.fields[n]
            assert words[-2] == MARK
            assert RedriveMark.parse(words[-1]) is not None
        return n

    def _check(self, before: Places) -> None:
        """Every entry is in one place, and its past is known."""
        now = self.places()
        by_hand = dict(self.by_hand)
        self.by_hand.clear()
        for n in self.fields:
            places = {name: getattr(now, name)[n] for name in ("alive", "dead", "parked", "retried")}
            places["dead"] = now.dead[n] - now.moving[n]
            if not sum(places.values()):  # otherwise the entry of a deleted letter had been appended before
                self.deleted[n] += by_hand.get(n, 0)
            places["deleted"] = self.deleted[n]
            assert sum(places.values()) == 1, f"entry {n}: {places}"
            self._redrives[n] += int(bool(before.dead[n] - before.moving[n] and (now.alive[n] or now.retried[n])))
            if n in now.letters:
                assert now.letters[n]["redrives"] == str(self._redrives[n]), f"entry {n}: {now.letters[n]}"
                assert now.letters[n]["stream"] == "s"
