"""Changes as commands, in the form in which the append-only file is written.

A command is recorded by its effect. Loading the file, here or in Redis, then needs neither the clock nor the state of
the moment when the command ran:

    XADD k *  …                  XADD k 1526919030474-0 …                 (trimming: MAXLEN = remaining entries)
    XREADGROUP g c … >           XCLAIM k g c 0 id … TIME t RETRYCOUNT 1 FORCE JUSTID LASTID id
                                 XGROUP SETID k g id ENTRIESREAD n
    XAUTOCLAIM                   XCLAIM for the claimed entries, XACK for deleted entries
    EXPIRE k 10                  PEXPIREAT k 1526919040474
    a key expires                DEL k

Most commands are their own effect and are recorded as they were sent. The others carry the flag `effect` in the command
table and call the methods below, or are listed in `_BY_STATE`: then the new state of the key is recorded.

Several commands of one effect, and all commands of a transaction, are recorded between MULTI and EXEC.

This module does not know files: `parts` collects the bytes until the writer takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from spark_streams.engine.store import entryid
from spark_streams.engine.store.entry_bytes import EXEC, MULTI, bulks, claim_command, fields_wire, number, xadd_head
from spark_streams.engine.store.references import Policy

if TYPE_CHECKING:
    from spark_streams.engine.store.group import StoredGroup
    from spark_streams.engine.store.keyspace import Database
    from spark_streams.engine.store.node_list import Slice
    from spark_streams.engine.store.pel import Consumer, PelRange
    from spark_streams.engine.store.stream import StoredStream

_IDS_PER_COMMAND = 50_000  # Redis takes a million arguments
_HEADS, _LONGEST_KEPT = 1_000, 200  # heads that are kept, for keys of at most these bytes


class Journal:
    """Recorded effects that are not written yet, for all databases: SELECT is recorded when the database changes."""

    __slots__ = ("_count", "_depth", "_heads", "_opened", "_opened_count", "parts", "refusal", "selected")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.selected = -1  # database of the last recorded command
        self.refusal = ""  # set while nothing can be written: the error reply of commands that change data
        self._count = 0
        self._depth = 0
        self._opened = 0  # index in `parts` at which MULTI would be inserted
        self._opened_count = 0
        self._heads: dict[tuple[bytes, bytes], bytes] = {}

    def take(self) -> bytes:
        """Return and clear the recorded bytes."""
        data = b"".join(self.parts)
        self.parts.clear()
        return data

    def begin(self) -> None:
        """Start a group of commands that must be loaded together."""
        if not self._depth:
            self._opened, self._opened_count = len(self.parts), self._count
        self._depth += 1

    def end(self) -> None:
        """End a group of commands. Several commands are enclosed in MULTI and EXEC."""
        self._depth -= 1
        if not self._depth and self._count - self._opened_count > 1:
            self.parts.insert(self._opened, MULTI)
            self.parts.append(EXEC)

    def write(self, db: Database, *args: bytes) -> None:
        """Record one command."""
        self._open(db)
        self.parts.append(fields_wire(list(args)))

    def write_raw(self, db: Database, *pieces: bytes) -> None:
        """Record one command that is encoded already."""
        self._open(db)
        self.parts += pieces

    def _open(self, db: Database) -> None:
        if self.selected != db.number:
            self.selected = db.number
            self.parts.append(fields_wire([b"SELECT", number(db.number)]))
            self._count += 1
        self._count += 1

    def record(self, db: Database, name: str, args: list[bytes]) -> None:
        """Record a command that has changed data, by its name in the command table."""
        effect = _BY_STATE.get(name)
        if effect is None:
            self._open(db)
            self.parts.append(fields_wire(args))
        else:
            effect(self, db, args)

    def restored(self, db: Database, key: bytes, existed: bool, commands: Iterable[bytes]) -> None:
        """Record a key made by RESTORE as commands, because not every Redis can read the payload."""
        self.begin()
        if existed:
            self.write(db, b"DEL", key)
        self._open(db)
        self._count += 1  # a value is several commands
        self.parts += commands
        self.end()

    # Streams

    def added(self, db: Database, key: bytes, identity: bytes, fields: bytes, keep: int | None = None) -> None:
        """Record an entry: its ID as a bulk string and its fields. keep: the entries that remain after a trim."""
        self._open(db)
        cut = fields.index(b"\r\n")
        if keep is None:
            count = fields[1:cut]
            head = self._heads.get((key, count))
            if head is None:
                head = xadd_head(key, count)
                if len(key) <= _LONGEST_KEPT:
                    if len(self._heads) >= _HEADS:
                        self._heads.clear()
                    self._heads[key, count] = head
        else:
            words = [b"XADD", key, b"MAXLEN", b"=", number(keep)]
            head = b"*%d%b" % (int(fields[1:cut]) + 6, fields_wire(words)[2:])
        self.parts += (head, identity, fields[cut + 2 :])

    def added_batch(
        self, db: Database, key: bytes, names: int, head: bytes, endings: Sequence[bytes], sections: Sequence[bytes]
    ) -> None:
        """Record entries of `names` fields; an ID is the head, `$15\\r\\n1526919030474-`, and an ending, `7\\r\\n`."""
        self._open(db)
        self._count += len(sections) - 1
        pieces = [xadd_head(key, b"%d" % (2 * names)) + head] * (3 * len(sections))
        pieces[1::3] = endings
        pieces[2::3] = sections
        self.parts.append(b"".join(pieces))

    def trimmed(self, db: Database, key: bytes, keep: int, policy: Policy = Policy.KEEPREF) -> None:
        """Record a trim of the oldest entries that the policy allowed to remove; `keep` entries remain."""
        policy_words = () if policy is Policy.KEEPREF else (policy.name.encode(),)
        self.write(db, b"XTRIM", key, b"MAXLEN", b"=", number(keep), *policy_words)

    def consumer(self, db: Database, key: bytes, group: bytes, consumer: bytes) -> None:
        """Record a consumer that was created on first use."""
        self.write(db, b"XGROUP", b"CREATECONSUMER", key, group, consumer)

    def position(self, db: Database, key: bytes, name: bytes, group: StoredGroup) -> None:
        """Record the position of a group."""
        read = -1 if group.entries_read is None else group.entries_read
        last = entryid.text(group.last_id)
        self.write(db, b"XGROUP", b"SETID", key, name, last, b"ENTRIESREAD", number(read))

    def delivered(
        self, db: Database, key: bytes, name: bytes, group: StoredGroup, slices: Sequence[Slice],
        consumer: Consumer | None, now: int,
    ) -> None:  # fmt: skip
        """Record new entries that were delivered (consumer None: pending for none), and the group's new position."""
        self.begin()
        if consumer is not None:
            last = entryid.text(group.last_id)
            tail = (b"TIME", number(now), b"RETRYCOUNT", b"1", b"FORCE", b"JUSTID", b"LASTID", last)
            texts = [text for node, low, high in slices for text in node.id_texts(low, high)]
            self._claim(db, key, name, consumer.name, texts, tail)
        self.position(db, key, name, group)
        self.end()

    def claimed(
        self, db: Database, key: bytes, name: bytes, group: StoredGroup, consumer: Consumer,
        by_deliveries: dict[int, list[int]], time: int, dropped: Iterable[int] = (), moved: bool = False,
    ) -> None:  # fmt: skip
        """Record claimed entries by delivery count, entries that left the pending list, and a new position."""
        self.begin()
        last = entryid.text(group.last_id)
        for deliveries, ids in by_deliveries.items():
            tail = (b"TIME", number(time), b"RETRYCOUNT", number(deliveries), b"FORCE", b"JUSTID", b"LASTID", last)
            self._claim(db, key, name, consumer.name, list(map(entryid.text, ids)), tail)
        dropped_texts = list(map(entryid.text, dropped))
        if dropped_texts:
            self.write(db, b"XACK", key, name, *dropped_texts)
        if moved:
            self.position(db, key, name, group)
        self.end()

    def redelivered(
        self,
        db: Database,
        key: bytes,
        name: bytes,
        group: StoredGroup,
        pel_ranges: Iterable[PelRange],
        stream: StoredStream,
    ) -> None:
        """Record pending ranges whose delivery time and count have changed."""
        self.begin()
        for pel_range in pel_ranges:
            ids = pel_range.id_list(stream)
            self.claimed(db, key, name, group, pel_range.consumer, {pel_range.deliveries: ids}, pel_range.time)
        self.end()

    def _claim(
        self, db: Database, key: bytes, name: bytes, consumer: bytes, texts: list[bytes], tail: tuple[bytes, ...]
    ) -> None:
        for start in range(0, len(texts), _IDS_PER_COMMAND):
            self._open(db)
            self.parts += claim_command(key, name, consumer, texts[start : start + _IDS_PER_COMMAND], tail)


# Commands whose arguments do not tell their effect: the new state of the key is recorded instead.


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
    """Record a command unchanged, if nearly all of its arguments are entry IDs."""
    journal.write_raw(db, b"*%d%b" % (len(args), fields_wire(args[:3])[2:]), bulks(args[3:]))


def _removed(journal: Journal, db: Database, args: list[bytes]) -> None:
    """Record XDELEX and XACKDEL, which need Redis 8.2, as XDEL of deleted entries and XACK of acknowledged ones."""
    stream = cast("StoredStream", db.values[args[1]])  # the command has checked that it exists
    groups: list[bytes] = []
    if args[0].lower() == b"xackdel":
        groups.append(args[2])
    texts: list[bytes] = []
    index = 2 + len(groups)
    while index < len(args):
        if args[index].lower() == b"ids":
            count = int(args[index + 1])
            texts = args[index + 2 : index + 2 + count]
            index += 2 + count
            continue
        if args[index].lower() == b"delref":
            groups = list(stream.groups)
        index += 1
    ids = [entryid.parse(text) for text in texts]
    journal.begin()
    deleted_texts = [entryid.text(entry_id) for entry_id in ids if stream.find(entry_id) is None]
    if deleted_texts:
        journal.write(db, b"XDEL", args[1], *deleted_texts)
    for name in groups:
        pending = stream.groups[name].pending
        acknowledged_texts = [entryid.text(entry_id) for entry_id in ids if pending.get(entry_id, stream) is None]
        if acknowledged_texts:
            journal.write(db, b"XACK", args[1], name, *acknowledged_texts)
    journal.end()


_BY_STATE: dict[str, Callable[[Journal, Database, list[bytes]], None]] = {
    "xack": _ids,
    "xdelex": _removed,
    "xackdel": _removed,
    **dict.fromkeys(("expire", "pexpire", "expireat", "pexpireat"), _expiry),
    "set": _string,
}
