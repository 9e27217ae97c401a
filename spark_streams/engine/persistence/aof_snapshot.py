"""The keyspace as commands that create it: the beginning of a rewritten append-only file.

A stream is more than its entries. The commands in this order, for any Redis from 7.0 on:

    XADD            every entry, and in their places the *ghosts*
    XGROUP CREATE, CREATECONSUMER, XCLAIM       groups, consumers, pending entries with times and counts
    XCFGSET, XIDMPRECORD                        remembered idempotent adds
    XTRIM, XDEL     remove the ghosts
    XSETID          last ID, entries ever added, greatest deleted ID
    XGROUP SETID    entries read of each group

A ghost is an entry that is pending or remembered but was deleted (XDEL, XTRIM). XCLAIM and XIDMPRECORD accept only
existing entries, so a ghost exists for a moment and is deleted again. Redis' own rewrite loses these entries. One kind
cannot be stored: a pending ID above the stream's last ID (after XSETID has lowered it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_streams.engine.store import entryid
from spark_streams.engine.store.entry_bytes import claim_command, fields_wire, number, xadd_head
from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.stream import StoredStream

_PER_COMMAND = 10_000  # ids
_ITEMS = 500  # fields of a hash, members of a set, elements of a list


def command(*args: bytes) -> bytes:
    """Return one command."""
    return fields_wire(list(args))


def database_commands(db: Database) -> Iterator[bytes]:
    """Yield all data of one database, in pieces of whole commands."""
    if db.values:
        yield command(b"SELECT", number(db.number))
    for key in list(db.values):
        yield from value_commands(key, db.values[key], db.expires.get(key))


def value_commands(key: bytes, value: Value, due: int | None) -> Iterator[bytes]:
    """Yield the commands for one key that does not exist yet, with its expiry."""
    if isinstance(value, StoredStream):
        yield from stream_commands(key, value)
    elif isinstance(value, bytes):
        yield command(b"SET", key, value)
    elif isinstance(value, dict):
        pairs = [word for pair in value.items() for word in pair]
        for start in range(0, len(pairs), 2 * _ITEMS):
            yield command(b"HSET", key, *pairs[start : start + 2 * _ITEMS])
    elif isinstance(value, set):
        members = list(value)
        for start in range(0, len(members), _ITEMS):
            yield command(b"SADD", key, *members[start : start + _ITEMS])
    else:
        backwards = value[::-1]
        for start in range(0, len(backwards), _ITEMS):
            yield command(b"LPUSH", key, *backwards[start : start + _ITEMS])
    if due is not None:
        yield command(b"PEXPIREAT", key, number(due))


def stream_commands(key: bytes, stream: StoredStream) -> Iterator[bytes]:
    """Yield the commands for one stream with its groups."""
    ghosts = _ghosts(stream)
    yield from _entries(key, stream, ghosts)
    if not stream.length and not ghosts:
        yield command(b"XADD", key, b"MAXLEN", b"0", b"0-1", b"", b"")
    for name, group in stream.groups.items():
        yield command(b"XGROUP", b"CREATE", key, name, entryid.text(group.last_id))
        for consumer in group.consumers.values():
            yield command(b"XGROUP", b"CREATECONSUMER", key, name, consumer.name)
        # Claims with the same time and count share a command, whatever range they are in.
        alike: dict[tuple[bytes, int, int], list[bytes]] = {}
        for pel_range in group.pending.index.ranges:
            texts = (
                pel_range.id_texts(stream)
                if pel_range.last <= stream.last_id
                else _not_above(pel_range.id_list(stream), stream.last_id)
            )
            if pel_range.consumer is group.released:
                yield from _release(key, name, pel_range.deliveries, texts)
            else:
                alike.setdefault((pel_range.consumer.name, pel_range.time, pel_range.deliveries), []).extend(texts)
        for (owner, time, deliveries), texts in alike.items():
            tail = (b"TIME", number(time), b"RETRYCOUNT", number(deliveries), b"FORCE", b"JUSTID")
            for start in range(0, len(texts), _PER_COMMAND):
                yield b"".join(claim_command(key, name, owner, texts[start : start + _PER_COMMAND], tail))
    yield from _idempotent_adds(key, stream)
    yield from _remove_ghosts(key, stream, ghosts)
    setid = [b"XSETID", key, entryid.text(stream.last_id), b"ENTRIESADDED", number(stream.entries_added)]
    yield command(*setid, b"MAXDELETEDID", entryid.text(stream.max_deleted_id))
    for name, group in stream.groups.items():
        if group.entries_read is not None:
            last = entryid.text(group.last_id)
            yield command(b"XGROUP", b"SETID", key, name, last, b"ENTRIESREAD", number(group.entries_read))


def _release(key: bytes, group: bytes, deliveries: int, texts: list[bytes]) -> Iterator[bytes]:
    """Yield the commands for entries that XNACK has released; they need Redis 8.8."""
    for start in range(0, len(texts), _PER_COMMAND):
        part = texts[start : start + _PER_COMMAND]
        ids = (b"IDS", number(len(part)), *part)
        yield command(b"XNACK", key, group, b"FAIL", *ids, b"RETRYCOUNT", number(deliveries), b"FORCE")


def _idempotent_adds(key: bytes, stream: StoredStream) -> Iterator[bytes]:
    """Yield the commands for remembered idempotent adds; they need Redis 8.6."""
    memory = stream.idempotence
    if memory.used:
        bounds = (b"IDMP-DURATION", number(memory.duration), b"IDMP-MAXSIZE", number(memory.max_size))
        yield command(b"XCFGSET", key, *bounds)
    for producer, messages in memory.producers.items():
        for message, entry_id in messages.items():
            if entry_id <= stream.last_id:
                yield command(b"XIDMPRECORD", key, producer, message, entryid.text(entry_id))


def _not_above(ids: Iterable[int], last: int) -> list[bytes]:
    return [entryid.text(entry_id) for entry_id in ids if entry_id <= last]


def _ghosts(stream: StoredStream) -> list[int]:
    """Return in order the IDs that are pending, or remembered of an idempotent add, and are no entries."""
    remembered = (entry_id for messages in stream.idempotence.producers.values() for entry_id in messages.values())
    ghosts = {entry_id for entry_id in remembered if stream.find(entry_id) is None}
    for group in stream.groups.values():
        for pel_range in group.pending.index.ranges:
            if pel_range.ids is None and pel_range.count > 1:
                for node, low, high in stream.slot_ranges(pel_range.first, pel_range.last):
                    ghosts.update(node.id_at(index) for index in node.dead or () if low <= index < high)
            else:
                ghosts.update(pending_id for pending_id in pel_range.id_list(stream) if stream.find(pending_id) is None)
    return sorted(pending_id for pending_id in ghosts if pending_id <= stream.last_id)


def _entries(key: bytes, stream: StoredStream, ghosts: list[int]) -> Iterator[bytes]:
    heads: dict[bytes, bytes] = {}
    waiting = iter(ghosts)
    ghost = next(waiting, None)
    for node in stream.nodes:
        pieces: list[bytes] = []
        for low, high in node.spans(0, node.slots):
            for index, entry in enumerate(node.wires(low, high), low):
                while ghost is not None and ghost < node.id_at(index):
                    pieces.append(_ghost(key, ghost))
                    ghost = next(waiting, None)
                # *2 $15 <id> *4 $4 <field> …: the ID is behind the first line, the fields are behind their count.
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


def _remove_ghosts(key: bytes, stream: StoredStream, ghosts: list[int]) -> Iterator[bytes]:
    """Yield the commands that delete the ghosts.

    Trimming below the first entry does not change the greatest deleted ID.
    """
    if not ghosts:
        return
    if not stream.length:
        yield command(b"XTRIM", key, b"MAXLEN", b"0")
        return
    if ghosts[0] < stream.first_id:
        yield command(b"XTRIM", key, b"MINID", b"=", entryid.text(stream.first_id))
    above = [entryid.text(ghost) for ghost in ghosts if ghost > stream.first_id]
    for start in range(0, len(above), _PER_COMMAND):
        yield command(b"XDEL", key, *above[start : start + _PER_COMMAND])
