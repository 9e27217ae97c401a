"""What changed, as commands: the words in which the append-only file is written.

A command is written down by its effect, so that reading it back later, here or in a real Redis, needs neither this
moment's clock nor this moment's state:

    XADD k *  …                  XADD k 1526919030474-0 …                 (trimming: MAXLEN = what is left)
    XREADGROUP g c … >           XCLAIM k g c 0 id … TIME t RETRYCOUNT 1 FORCE JUSTID LASTID id
                                 XGROUP SETID k g id ENTRIESREAD n
    XAUTOCLAIM                   XCLAIM for what was claimed, XACK for what no longer exists
    EXPIRE k 10                  PEXPIREAT k 1526919040474
    a key expires                DEL k

Most commands are their own effect and are written as they came. Those that are not carry the flag `effect` in the
command table and call the methods below, or stand in `_BY_STATE`: then what is written is how the key is now.

Several commands that belong together, and all of a transaction, stand between MULTI and EXEC.

Nothing here knows of files: `parts` collects until somebody takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from spark_streams.engine.command_bytes import EXEC, MULTI, bulks, claim_command, number, xadd_head
from spark_streams.engine.store import entryid
from spark_streams.engine.store.entry import fields_wire
from spark_streams.engine.store.references import Policy

if TYPE_CHECKING:
    from spark_streams.engine.store.group import Group
    from spark_streams.engine.store.keyspace import Database
    from spark_streams.engine.store.node_list import Slice
    from spark_streams.engine.store.pel_range import Consumer, PelRange
    from spark_streams.engine.store.stream import Stream

_IDS_PER_COMMAND = 50_000  # Redis takes a million arguments
_HEADS = 1_000


class Journal:
    """Effects that wait to be written. One for all databases: SELECT is written where the database changes."""

    __slots__ = ("_count", "_depth", "_heads", "_opened", "_opened_count", "parts", "refusal", "selected")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.selected = -1  # the database that the commands behind the last one would go to
        self.refusal = ""  # set while nothing can be written: commands that change something are answered with it
        self._count = 0
        self._depth = 0
        self._opened = 0  # where MULTI would stand
        self._opened_count = 0
        self._heads: dict[tuple[bytes, bytes], bytes] = {}

    def take(self) -> bytes:
        """What waits, and nothing waits any more."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data

    def begin(self) -> None:
        """What follows belongs together."""
        if not self._depth:
            self._opened, self._opened_count = len(self.parts), self._count
        self._depth += 1

    def end(self) -> None:
        """What belonged together is complete."""
        self._depth -= 1
        if not self._depth and self._count - self._opened_count > 1:
            self.parts.insert(self._opened, MULTI)
            self.parts.append(EXEC)

    def write(self, db: Database, *args: bytes) -> None:
        """One command."""
        self._open(db)
        self.parts.append(fields_wire(list(args)))

    def write_raw(self, db: Database, *pieces: bytes) -> None:
        """One command whose bytes are known."""
        self._open(db)
        self.parts += pieces

    def _open(self, db: Database) -> None:
        if self.selected != db.number:
            self.selected = db.number
            self.parts.append(fields_wire([b"SELECT", number(db.number)]))
            self._count += 1
        self._count += 1

    def record(self, db: Database, name: str, args: list[bytes]) -> None:
        """A command that has changed something, by its name in the command table."""
        effect = _BY_STATE.get(name)
        if effect is None:
            self._open(db)
            self.parts.append(fields_wire(args))
        else:
            effect(self, db, args)

    def restored(self, db: Database, key: bytes, existed: bool, commands: Iterable[bytes]) -> None:
        """A key was made from a payload, which not every Redis can read: the commands that make it are written."""
        self.begin()
        if existed:
            self.write(db, b"DEL", key)
        self._open(db)
        self._count += 1  # a value is several commands
        self.parts += commands
        self.end()

    # Streams

    def added(self, db: Database, key: bytes, identity: bytes, fields: bytes, keep: int | None = None) -> None:
        """An entry: its id as a bulk string, its field section; what is left, where the stream was trimmed."""
        self._open(db)
        cut = fields.index(b"\r\n")
        if keep is None:
            count = fields[1:cut]
            head = self._heads.get((key, count))
            if head is None:
                if len(self._heads) >= _HEADS:
                    self._heads.clear()
                head = self._heads[key, count] = xadd_head(key, count)
        else:
            words = [b"XADD", key, b"MAXLEN", b"=", number(keep)]
            head = b"*%d%b" % (int(fields[1:cut]) + 6, fields_wire(words)[2:])
        self.parts += (head, identity, fields[cut + 2 :])

    def added_batch(
        self, db: Database, key: bytes, names: int, head: bytes, endings: Sequence[bytes], sections: Sequence[bytes]
    ) -> None:
        """Entries of so many fields whose ids are one head, `$15\\r\\n1526919030474-`, and an ending, `7\\r\\n`."""
        self._open(db)
        self._count += len(sections) - 1
        pieces = [xadd_head(key, b"%d" % (2 * names)) + head] * (3 * len(sections))
        pieces[1::3] = endings
        pieces[2::3] = sections
        self.parts.append(b"".join(pieces))

    def trimmed(self, db: Database, key: bytes, keep: int, policy: Policy = Policy.KEEPREF) -> None:
        """The oldest entries that the policy let go went, and so many are left."""
        how = () if policy is Policy.KEEPREF else (policy.name.encode(),)
        self.write(db, b"XTRIM", key, b"MAXLEN", b"=", number(keep), *how)

    def consumer(self, db: Database, key: bytes, group: bytes, consumer: bytes) -> None:
        """A consumer was made on first mention."""
        self.write(db, b"XGROUP", b"CREATECONSUMER", key, group, consumer)

    def position(self, db: Database, key: bytes, name: bytes, group: Group) -> None:
        """Where a group stands."""
        read = -1 if group.entries_read is None else group.entries_read
        last = entryid.text(group.last_id)
        self.write(db, b"XGROUP", b"SETID", key, name, last, b"ENTRIESREAD", number(read))

    def delivered(
        self, db: Database, key: bytes, name: bytes, group: Group, slices: Sequence[Slice], consumer: Consumer | None,
        now: int,
    ) -> None:  # fmt: skip
        """New entries went to a consumer (None: NOACK), and the group moved on."""
        self.begin()
        if consumer is not None:
            last = entryid.text(group.last_id)
            tail = (b"TIME", number(now), b"RETRYCOUNT", b"1", b"FORCE", b"JUSTID", b"LASTID", last)
            texts = [text for node, low, high in slices for text in node.id_texts(low, high)]
            self._claim(db, key, name, consumer.name, texts, tail)
        self.position(db, key, name, group)
        self.end()

    def claimed(
        self, db: Database, key: bytes, name: bytes, group: Group, consumer: Consumer,
        by_deliveries: dict[int, list[int]], time: int, dropped: Iterable[int] = (), moved: bool = False,
    ) -> None:  # fmt: skip
        """Entries by their new delivery counts went to a consumer; others left the pending list; the group moved."""
        self.begin()
        last = entryid.text(group.last_id)
        for deliveries, ids in by_deliveries.items():
            tail = (b"TIME", number(time), b"RETRYCOUNT", number(deliveries), b"FORCE", b"JUSTID", b"LASTID", last)
            self._claim(db, key, name, consumer.name, list(map(entryid.text, ids)), tail)
        gone = list(map(entryid.text, dropped))
        if gone:
            self.write(db, b"XACK", key, name, *gone)
        if moved:
            self.position(db, key, name, group)
        self.end()

    def redelivered(
        self, db: Database, key: bytes, name: bytes, group: Group, pel_ranges: Iterable[PelRange], stream: Stream
    ) -> None:
        """Ranges whose time and deliveries have changed."""
        self.begin()
        for pel_range in pel_ranges:
            ids = pel_range.id_list(stream)
            self.claimed(db, key, name, group, pel_range.consumer, {pel_range.deliveries: ids}, pel_range.time)
        self.end()

    def _claim(
        self, db: Database, key: bytes, name: bytes, consumer: bytes, texts: list[bytes], tail: tuple[bytes, ...]
    ) -> None:
        for at in range(0, len(texts), _IDS_PER_COMMAND):
            self._open(db)
            self.parts += claim_command(key, name, consumer, texts[at : at + _IDS_PER_COMMAND], tail)


# Commands whose words do not say what they have done: how the key is now is written instead.


def _expiry(journal: Journal, db: Database, args: list[bytes]) -> None:
    key = args[1]
    if key not in db.values:
        journal.write(db, b"DEL", key)
        return
    due = db.expires.get(key)
    journal.write(db, *((b"PERSIST", key) if due is None else (b"PEXPIREAT", key, number(due))))


def _string(journal: Journal, db: Database, args: list[bytes]) -> None:
    key = args[1]
    value = db.values.get(key)
    if not isinstance(value, bytes):
        journal.write(db, b"DEL", key)
        return
    due = db.expires.get(key)
    journal.write(db, b"SET", key, value, *(() if due is None else (b"PXAT", number(due))))


def _ids(journal: Journal, db: Database, args: list[bytes]) -> None:
    """As it came, where nearly all arguments are ids."""
    journal.write_raw(db, b"*%d%b" % (len(args), fields_wire(args[:3])[2:]), bulks(args[3:]))


def _removed(journal: Journal, db: Database, args: list[bytes]) -> None:
    """XDELEX and XACKDEL, which only Redis from 8.2 on has: what has gone, and what is pending no more."""
    stream = cast("Stream", db.values[args[1]])  # the command has found one
    groups: list[bytes] = []
    if args[0].lower() == b"xackdel":
        groups.append(args[2])
    texts: list[bytes] = []
    at = 2 + len(groups)
    while at < len(args):
        if args[at].lower() == b"ids":
            count = int(args[at + 1])
            texts = args[at + 2 : at + 2 + count]
            at += 2 + count
            continue
        if args[at].lower() == b"delref":
            groups = list(stream.groups)
        at += 1
    ids = [entryid.parse(text) for text in texts]
    journal.begin()
    gone = [entryid.text(entry_id) for entry_id in ids if stream.find(entry_id) is None]
    if gone:
        journal.write(db, b"XDEL", args[1], *gone)
    for name in groups:
        pending = stream.groups[name].pending
        done = [entryid.text(entry_id) for entry_id in ids if pending.get(entry_id, stream) is None]
        if done:
            journal.write(db, b"XACK", args[1], name, *done)
    journal.end()


_BY_STATE: dict[str, Callable[[Journal, Database, list[bytes]], None]] = {
    "xack": _ids,
    "xdelex": _removed,
    "xackdel": _removed,
    **dict.fromkeys(("expire", "pexpire", "expireat", "pexpireat"), _expiry),
    "set": _string,
}
