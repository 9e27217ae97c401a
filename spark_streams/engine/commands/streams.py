"""XADD XLEN XRANGE XREVRANGE XDEL XTRIM XSETID: what works on entries, without groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.engine import entryid
from spark_streams.engine.client import Client
from spark_streams.engine.commands.arguments import (
    BAD_ID,
    entry_id,
    integer_of,
    interval,
    syntax_error,
)
from spark_streams.engine.commands.table import command
from spark_streams.engine.core import Engine
from spark_streams.engine.listpack import MAX_NODE_BYTES
from spark_streams.engine.protocol import fields_wire
from spark_streams.engine.replies import EMPTY_ARRAY, NIL, NIL_ARRAY, CommandError, Pieces, Reply, Typed, integer
from spark_streams.engine.stream import Slice, Stream
from spark_streams.ids import U64_MAX


class Entries(Typed):
    """Stored entries: an array whose bytes are taken from the nodes only when it is sent."""

    __slots__ = ("count", "slices")

    def __init__(self, slices: Sequence[Slice], count: int) -> None:
        self.slices = slices
        self.count = count

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*%d\r\n" % self.count)
        for node, low, high in self.slices:
            out.append(node.wire(low, high))


@dataclass
class _Trim:
    keep: int | None = None
    min_id: int | None = None
    approximate: bool = False
    limit: int = 0

    def apply(self, stream: Stream) -> int:
        if self.keep is None and self.min_id is None:
            return 0
        return stream.trim(self.keep, self.min_id or 0, self.approximate, self.limit)


@dataclass
class _Id:
    ms: int | None = None  # None: `*`
    seq: int | None = None  # None: `<ms>-*`


def _parse_add_or_trim(engine: Engine, args: list[bytes], adding: bool) -> tuple[_Trim, _Id, bool, int]:
    """Options of XADD and XTRIM: trim, id, NOMKSTREAM, and where the id stands (`streamParseAddOrTrimArgsOrReply`)."""
    trim, chosen, make, limit_given = _Trim(), _Id(), True, False
    at, last = 2, len(args) - 1
    while at <= last:
        option, more = args[at].lower(), last - at
        if adding and option == b"*":
            break
        if option in (b"maxlen", b"minid") and more:
            if trim.keep is not None or trim.min_id is not None:
                raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
            trim.approximate = False
            if more >= 2 and args[at + 1] in (b"~", b"="):
                trim.approximate = args[at + 1] == b"~"
                at += 1
            if option == b"maxlen":
                trim.keep = integer_of(args[at + 1])
                if trim.keep < 0:
                    raise CommandError("ERR The MAXLEN argument must be >= 0.")
            else:
                trim.min_id = entry_id(args[at + 1])
            at += 1
        elif option == b"limit" and more:
            trim.limit = integer_of(args[at + 1])
            if trim.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            limit_given = True
            at += 1
        elif adding and option == b"nomkstream":
            make = False
        elif adding:
            chosen = _parse_new_id(args[at])
            break
        else:
            raise syntax_error()
        at += 1
    trims = trim.keep is not None or trim.min_id is not None
    if trim.limit and not trims:
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not adding and not trims:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if limit_given and not trim.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
    if not limit_given and trim.approximate:
        trim.limit = min(100 * engine.node_limits.entries, 1_000_000) or 10_000
    return trim, chosen, make, at


def _parse_new_id(text: bytes) -> _Id:
    ms, dash, seq = text.partition(b"-")
    if dash and seq == b"*" and len(text) <= 127:
        try:
            return _Id(entryid.number(ms))
        except entryid.EntryIdError:
            raise CommandError(BAD_ID) from None
    value = entry_id(text)
    return _Id(value >> 64, value & U64_MAX)


@command("xadd", -5, "write denyoom fast effect", (1, 1, 1))
def xadd(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT n]] *|id field value …"""
    trim: _Trim | None = None
    chosen: _Id | None = None
    make, id_at = True, 2
    if args[2] != b"*":
        trim, chosen, make, id_at = _parse_add_or_trim(engine, args, adding=True)
    count = len(args) - id_at - 1
    if count < 2 or count % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    if chosen is not None and chosen.ms == 0 and chosen.seq == 0:
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    db, key = client.db, args[1]
    stream = db.stream(key)
    if stream is None and not make:
        return NIL
    last = stream.last_id if stream is not None else 0
    if last == entryid.HIGHEST:
        raise CommandError("ERR The stream has exhausted the last possible ID, unable to add more items")
    if chosen is None or chosen.ms is None:
        new = engine.now << 64
        if new <= last:
            new = last + 1
    else:
        new = _explicit(chosen, last)
    pairs = args[id_at + 1 :]
    fields = fields_wire(pairs)
    if len(fields) > MAX_NODE_BYTES and sum(map(len, pairs)) > MAX_NODE_BYTES:
        raise CommandError("ERR Elements are too large to be stored")
    if stream is None:
        stream = db.values[key] = Stream(engine.node_limits)
    text = b"%d-%d" % (new >> 64, new & U64_MAX)
    answer = b"$%d\r\n%b\r\n" % (len(text), text)
    stream.append(new, b"*2\r\n%b%b" % (answer, fields), pairs)
    removed = trim.apply(stream) if trim is not None else 0
    if engine.journal is not None:
        engine.journal.added(db, key, answer, fields, stream.length if removed else None)
    db.touch(key)
    return answer


def _explicit(chosen: _Id, last: int) -> int:
    assert chosen.ms is not None
    if chosen.seq is not None:
        new = (chosen.ms << 64) | chosen.seq
    elif last >> 64 == chosen.ms and last & U64_MAX != U64_MAX:
        new = last + 1
    else:
        new = chosen.ms << 64
    if new <= last:
        raise CommandError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return new


@command("xtrim", -4, "write effect", (1, 1, 1))
def xtrim(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT n]"""
    trim = _parse_add_or_trim(engine, args, adding=False)[0]
    stream = client.db.stream(args[1])
    removed = trim.apply(stream) if stream is not None else 0
    if removed and stream is not None:
        client.db.touch(args[1])
        if engine.journal is not None:
            engine.journal.trimmed(client.db, args[1], stream.length)
    return integer(removed)


@command("xlen", 2, "readonly fast", (1, 1, 1))
def xlen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XLEN key"""
    stream = client.db.stream(args[1])
    return integer(stream.length if stream is not None else 0)


def _range(client: Client, args: list[bytes], backwards: bool) -> Reply:
    start, end = interval(args[3], args[2]) if backwards else interval(args[2], args[3])
    count: int | None = None
    at = 4
    while at < len(args):
        if args[at].lower() != b"count" or at + 1 == len(args):
            raise syntax_error()
        count = max(integer_of(args[at + 1]), 0)
        at += 2
    stream = client.db.stream(args[1])
    if stream is None:
        return EMPTY_ARRAY
    if count == 0:
        return NIL_ARRAY
    if backwards:
        entries = stream.entries_backwards(start, end, count)
        return Pieces(len(entries), entries)
    return Entries(*stream.slices(start, end, count))


@command("xrange", -4, "readonly", (1, 1, 1))
def xrange_(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XRANGE key start end [COUNT n]"""
    return _range(client, args, backwards=False)


@command("xrevrange", -4, "readonly", (1, 1, 1))
def xrevrange(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XREVRANGE key end start [COUNT n]"""
    return _range(client, args, backwards=True)


@command("xdel", -3, "write fast", (1, 1, 1))
def xdel(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XDEL key id …"""
    stream = client.db.stream(args[1])
    if stream is None:
        return integer(0)
    removed = sum(stream.delete(one) for one in [entry_id(text) for text in args[2:]])
    if removed:
        client.db.touch(args[1])
    return integer(removed)


@command("xsetid", -3, "write denyoom fast", (1, 1, 1))
def xsetid(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XSETID key last-id [ENTRIESADDED n] [MAXDELETEDID id]"""
    last = entry_id(args[2])
    added: int | None = None
    deleted: int | None = None
    at = 3
    while at < len(args):
        option, more = args[at].lower(), len(args) - at - 1
        if option == b"entriesadded" and more:
            added = integer_of(args[at + 1])
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        elif option == b"maxdeletedid" and more:
            deleted = entry_id(args[at + 1])
            if last < deleted:
                raise CommandError("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise syntax_error()
        at += 2
    stream = client.db.stream(args[1])
    if stream is None:
        raise CommandError("ERR no such key")
    if stream.length:
        if last < stream.top_id():
            raise CommandError("ERR The ID specified in XSETID is smaller than the target stream top item")
        if added is not None and added < stream.length:
            raise CommandError("ERR The entries_added specified in XSETID is smaller than the target stream length")
    stream.set_last_id(last)
    if added is not None:
        stream.entries_added = added
    if deleted:
        stream.max_deleted_id = deleted
    client.db.touch_groups(args[1])
    return b"+OK\r\n"
