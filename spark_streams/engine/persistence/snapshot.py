"""The key space as commands that build it: what a rewritten append-only file begins with.

A stream is more than its entries. In this order, which any Redis from 7.0 on takes:

    XADD            every entry; among them, in their places, *ghosts*
    XGROUP CREATE, CREATECONSUMER, XCLAIM       groups, consumers, pending entries with times and counts
    XCFGSET, XIDMPRECORD                        what is remembered of idempotent adds
    XTRIM, XDEL     the ghosts go
    XSETID          last id, entries ever added, greatest deleted id
    XGROUP SETID    what each group has read

A ghost is an entry that is pending or remembered and exists no more (XDEL, XTRIM). XCLAIM makes pending only what
exists, and so with XIDMPRECORD; so such an entry is there for a moment, and goes. Redis' own rewrite loses these. One
cannot be kept: a pending id above the stream's last one (after XSETID has set that back).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_streams.engine.command_bytes import claim_command, number, xadd_head
from spark_streams.engine.store import entryid
from spark_streams.engine.store.entry import fields_wire
from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.stream import Stream

_PER_COMMAND = 10_000  # ids
_ITEMS = 500  # fields of a hash, members of a set, elements of a list


def command(*args: bytes) -> bytes:
    """One command."""
    return fields_wire(list(args))


def database(db: Database) -> Iterator[bytes]:
    """Everything in one database, in pieces of whole commands."""
    if db.values:
        yield command(b"SELECT", number(db.number))
    for key in list(db.values):
        yield from value(key, db.values[key], db.expires.get(key))


def value(key: bytes, what: Value, due: int | None) -> Iterator[bytes]:
    """One key that does not exist yet, with its expiry."""
    if isinstance(what, Stream):
        yield from stream(key, what)
    elif isinstance(what, bytes):
        yield command(b"SET", key, what)
    elif isinstance(what, dict):
        pairs = [word for pair in what.items() for word in pair]
        for at in range(0, len(pairs), 2 * _ITEMS):
            yield command(b"HSET", key, *pairs[at : at + 2 * _ITEMS])
    elif isinstance(what, set):
        members = list(what)
        for at in range(0, len(members), _ITEMS):
            yield command(b"SADD", key, *members[at : at + _ITEMS])
    else:
        backwards = what[::-1]
        for at in range(0, len(backwards), _ITEMS):
            yield command(b"LPUSH", key, *backwards[at : at + _ITEMS])
    if due is not None:
        yield command(b"PEXPIREAT", key, number(due))


def stream(key: bytes, what: Stream) -> Iterator[bytes]:
    """One stream with its groups."""
    ghosts = _ghosts(what)
    yield from _entries(key, what, ghosts)
    if not what.length and not ghosts:
        yield command(b"XADD", key, b"MAXLEN", b"0", b"0-1", b"", b"")
    for name, group in what.groups.items():
        yield command(b"XGROUP", b"CREATE", key, name, entryid.text(group.last_id))
        for consumer in group.consumers.values():
            yield command(b"XGROUP", b"CREATECONSUMER", key, name, consumer.name)
        # Alike claims go together, however many ranges they lie in.
        alike: dict[tuple[bytes, int, int], list[bytes]] = {}
        for pel_range in group.pending.index.ranges:
            texts = (
                pel_range.id_texts(what)
                if pel_range.last <= what.last_id
                else _not_above(pel_range.id_list(what), what.last_id)
            )
            if pel_range.consumer is group.nobody:
                yield from _release(key, name, pel_range.deliveries, texts)
            else:
                alike.setdefault((pel_range.consumer.name, pel_range.time, pel_range.deliveries), []).extend(texts)
        for (owner, time, deliveries), texts in alike.items():
            tail = (b"TIME", number(time), b"RETRYCOUNT", number(deliveries), b"FORCE", b"JUSTID")
            for at in range(0, len(texts), _PER_COMMAND):
                yield b"".join(claim_command(key, name, owner, texts[at : at + _PER_COMMAND], tail))
    yield from _memory(key, what)
    yield from _exorcise(key, what, ghosts)
    setid = [b"XSETID", key, entryid.text(what.last_id), b"ENTRIESADDED", number(what.entries_added)]
    yield command(*setid, b"MAXDELETEDID", entryid.text(what.max_deleted_id))
    for name, group in what.groups.items():
        if group.entries_read is not None:
            last = entryid.text(group.last_id)
            yield command(b"XGROUP", b"SETID", key, name, last, b"ENTRIESREAD", number(group.entries_read))


def _release(key: bytes, group: bytes, deliveries: int, texts: list[bytes]) -> Iterator[bytes]:
    """What XNACK has released: pending for nobody. Only Redis from 8.8 on knows that."""
    for at in range(0, len(texts), _PER_COMMAND):
        part = texts[at : at + _PER_COMMAND]
        ids = (b"IDS", number(len(part)), *part)
        yield command(b"XNACK", key, group, b"FAIL", *ids, b"RETRYCOUNT", number(deliveries), b"FORCE")


def _memory(key: bytes, what: Stream) -> Iterator[bytes]:
    """What is remembered of idempotent adds; from 8.6 on."""
    memory = what.idempotence
    if memory.used:
        bounds = (b"IDMP-DURATION", number(memory.duration), b"IDMP-MAXSIZE", number(memory.max_size))
        yield command(b"XCFGSET", key, *bounds)
    for producer, messages in memory.producers.items():
        for message, entry_id in messages.items():
            if entry_id <= what.last_id:
                yield command(b"XIDMPRECORD", key, producer, message, entryid.text(entry_id))


def _not_above(ids: Iterable[int], last: int) -> list[bytes]:
    return [entryid.text(entry_id) for entry_id in ids if entry_id <= last]


def _ghosts(what: Stream) -> list[int]:
    """Ids that are pending somewhere, or remembered of an idempotent add, and are no entries; in order."""
    remembered = (entry_id for messages in what.idempotence.producers.values() for entry_id in messages.values())
    ghosts = {entry_id for entry_id in remembered if what.find(entry_id) is None}
    for group in what.groups.values():
        for pel_range in group.pending.index.ranges:
            if pel_range.ids is None and pel_range.count > 1:
                for node, low, high in what.slot_ranges(pel_range.first, pel_range.last):
                    ghosts.update(node.id_at(index) for index in node.dead or () if low <= index < high)
            else:
                ghosts.update(pending_id for pending_id in pel_range.id_list(what) if what.find(pending_id) is None)
    return sorted(pending_id for pending_id in ghosts if pending_id <= what.last_id)


def _entries(key: bytes, what: Stream, ghosts: list[int]) -> Iterator[bytes]:
    heads: dict[bytes, bytes] = {}
    waiting = iter(ghosts)
    ghost = next(waiting, None)
    for node in what.nodes:
        pieces: list[bytes] = []
        for low, high in node.spans(0, node.slots):
            for index, entry in enumerate(node.wires(low, high), low):
                while ghost is not None and ghost < node.id_at(index):
                    pieces.append(_ghost(key, ghost))
                    ghost = next(waiting, None)
                # *2 $15 <id> *4 $4 <field> …: the id is behind the first line, the fields behind their count.
                cut = entry.index(b"\r\n*", 4) + 3
                end = entry.index(b"\r\n", cut)
                head = heads.get(entry[cut:end])
                if head is None:
                    head = heads[entry[cut:end]] = xadd_head(key, entry[cut:end])
                pieces += (head, entry[4 : cut - 1], entry[end + 2 :])
        yield b"".join(pieces)
    while ghost is not None:
        yield _ghost(key, ghost)
        ghost = next(waiting, None)


def _ghost(key: bytes, entry_id: int) -> bytes:
    return command(b"XADD", key, entryid.text(entry_id), b"", b"")


def _exorcise(key: bytes, what: Stream, ghosts: list[int]) -> Iterator[bytes]:
    """Trimming what is below the first entry leaves the greatest deleted id alone, as it was left alone before."""
    if not ghosts:
        return
    if not what.length:
        yield command(b"XTRIM", key, b"MAXLEN", b"0")
        return
    if ghosts[0] < what.first_id:
        yield command(b"XTRIM", key, b"MINID", b"=", entryid.text(what.first_id))
    above = [entryid.text(ghost) for ghost in ghosts if ghost > what.first_id]
    for at in range(0, len(above), _PER_COMMAND):
        yield command(b"XDEL", key, *above[at : at + _PER_COMMAND])
