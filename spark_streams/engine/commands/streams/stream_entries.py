"""XADD XLEN XRANGE XREVRANGE XTRIM XSETID, XCFGSET XIDMPRECORD: commands on entries, without groups.

Redis parses the options of XADD and XTRIM with one function (`streamParseAddOrTrimArgsOrReply`). XCFGSET and
XIDMPRECORD are about the remembered messages of XADD IDMP and IDMPAUTO.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import BAD_ID, entry_id, integer_of, interval, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import (
    EMPTY_ARRAY,
    NIL,
    NIL_ARRAY,
    OK,
    CommandError,
    Pieces,
    Reply,
    Typed,
    bulk,
    integer,
)
from spark_streams.engine.store import entryid, references
from spark_streams.engine.store.entry_bytes import fields_wire
from spark_streams.engine.store.keyspace import Database, existing
from spark_streams.engine.store.listpack_size import MAX_NODE_BYTES
from spark_streams.engine.store.node_list import Slice
from spark_streams.engine.store.references import Policy
from spark_streams.engine.store.remembered_messages import MAX_DURATION, MAX_SIZE, message_of
from spark_streams.engine.store.stream import StoredStream

POLICIES = {policy.value.encode(): policy for policy in Policy}
_IDMP = "ERR syntax error, IDMP/IDMPAUTO "


class AddOptions:
    """Options of an XADD or XTRIM, without fields and values."""

    ms: int | None = None  # of the ID; None: `*`
    seq: int | None = None  # None: `<ms>-*`
    make: bool = True  # not NOMKSTREAM
    producer: bytes | None = None
    message: bytes | None = None  # None: derived from fields and values (IDMPAUTO)
    keep: int | None = None
    min_id: int | None = None
    approximate: bool = False
    limit: int = 0
    policy: Policy = Policy.KEEPREF

    @property
    def trims(self) -> bool:
        """Whether a trimming strategy was specified."""
        return self.keep is not None or self.min_id is not None

    def trim(self, stream: StoredStream) -> int:
        """Trim the stream. Return how many entries were removed."""
        if not self.trims:
            return 0
        if self.policy is Policy.KEEPREF:
            return stream.trim(self.keep, self.min_id or 0, self.approximate, self.limit)
        return references.trim(stream, self.keep, self.min_id or 0, self.limit, self.policy)


def parse_add_or_trim(engine: Engine, args: list[bytes], adding: bool) -> tuple[AddOptions, int]:
    """Return the options, and the index of the ID. Raises CommandError."""
    options, limit_given, policy = AddOptions(), False, False
    index, last = 2, len(args) - 1
    while index <= last:
        option, more = args[index].lower(), last - index
        if adding and option == b"*":
            break
        if option in (b"maxlen", b"minid") and more:
            index = _threshold(options, args, index)
        elif option == b"limit" and more:
            options.limit = integer_of(args[index + 1])
            if options.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            limit_given = True
            index += 1
        elif option in POLICIES and not policy:
            options.policy, policy = POLICIES[option], True
        elif adding and option == b"nomkstream":
            options.make = False
        elif adding and ((option == b"idmpauto" and more) or (option == b"idmp" and more >= 2)):
            index = _producer(options, args, index)
        elif adding:
            options.ms, options.seq = _new_id(args[index])
            if options.producer is not None:
                raise CommandError(_IDMP + "can be used only with auto-generated IDs")
            break
        else:
            raise syntax_error()
        index += 1
    if options.limit and not options.trims:
        raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if not adding and not options.trims:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    if limit_given and not options.approximate:
        raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
    if not limit_given and options.approximate:
        options.limit = min(100 * engine.node_limits.entries, 1_000_000) or 10_000
    return options, index


def _threshold(options: AddOptions, args: list[bytes], index: int) -> int:
    """Parse `MAXLEN|MINID [=|~] threshold` at `index`. Return the index of its last word."""
    if options.trims:
        raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
    by_length = args[index].lower() == b"maxlen"
    options.approximate = False
    if index + 2 < len(args) and args[index + 1] in (b"~", b"="):
        options.approximate = args[index + 1] == b"~"
        index += 1
    if by_length:
        options.keep = integer_of(args[index + 1])
        if options.keep < 0:
            raise CommandError("ERR The MAXLEN argument must be >= 0.")
    else:
        options.min_id = entry_id(args[index + 1])
    return index + 1


def _producer(options: AddOptions, args: list[bytes], index: int) -> int:
    """Parse `IDMPAUTO producer` or `IDMP producer message` at `index`. Return the index of its last word."""
    option = args[index].upper()
    if options.producer is not None:
        raise CommandError(_IDMP + "specified multiple times")
    options.producer = args[index + 1]
    if not options.producer:
        raise CommandError(b"ERR syntax error, %b requires a non-empty producer ID" % option)
    if option == b"IDMPAUTO":
        return index + 1
    options.message = args[index + 2]
    if not options.message:
        raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    return index + 2


def _new_id(text: bytes) -> tuple[int, int | None]:
    ms, dash, seq = text.partition(b"-")
    if dash and seq == b"*" and len(text) <= 127:
        try:
            return entryid.number(ms), None
        except entryid.BadEntryIdError:
            raise CommandError(BAD_ID) from None
    value = entry_id(text)
    return value >> 64, value & U64_MAX


_NO_OPTIONS = AddOptions()


class Entries(Typed):
    """Stored entries: an array whose bytes are read from the nodes only when it is sent."""

    __slots__ = ("count", "slices")

    def __init__(self, slices: Sequence[Slice], count: int) -> None:
        self.slices = slices
        self.count = count

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*%d\r\n" % self.count)
        for node, low, high in self.slices:
            out.append(node.wire(low, high))


@command("xadd", -5, "write denyoom fast effect", (1, 1, 1))
def xadd(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XADD key [options] *|id field value …

    Options: NOMKSTREAM, KEEPREF|DELREF|ACKED, IDMPAUTO producer|IDMP producer message,
    MAXLEN|MINID [=|~] threshold [LIMIT n].
    """
    options, id_at = _NO_OPTIONS, 2
    if args[2] != b"*":
        options, id_at = parse_add_or_trim(engine, args, adding=True)
    pairs = args[id_at + 1 :]
    if len(pairs) < 2 or len(pairs) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    if options.ms == 0 and options.seq == 0:
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    db, key = client.db, args[1]
    stored_stream = db.stream(key)
    if stored_stream is None and not options.make:
        return NIL
    stream = stored_stream if stored_stream is not None else StoredStream(engine.node_limits)
    if options.producer is not None:
        earlier_id = _find_duplicate(stream, options, options.producer, pairs, engine.now)
        if earlier_id is not None:
            db.changes += 1
            return bulk(entryid.text(earlier_id))
    last = stream.last_id
    if last == entryid.HIGHEST:
        raise CommandError("ERR The stream has exhausted the last possible ID, unable to add more items")
    new = engine.now << 64 if options.ms is None else _explicit(options.ms, options.seq, last)
    if new <= last:
        new = last + 1
    fields = fields_wire(pairs)
    if len(fields) > MAX_NODE_BYTES and sum(map(len, pairs)) > MAX_NODE_BYTES:
        raise CommandError("ERR Elements are too large to be stored")
    if stored_stream is None:
        db.values[key] = stream
    text = b"%d-%d" % (new >> 64, new & U64_MAX)
    answer = b"$%d\r\n%b\r\n" % (len(text), text)
    stream.append(new, b"*2\r\n%b%b" % (answer, fields), pairs)
    if options is not _NO_OPTIONS:
        _after_add(engine, db, key, stream, options, new, answer, fields)
    elif engine.journal is not None:
        engine.journal.added(db, key, answer, fields)
    db.touch(key)
    return answer


def _find_duplicate(
    stream: StoredStream, options: AddOptions, producer: bytes, pairs: list[bytes], now: int
) -> int | None:
    """Return the existing entry of this producer's message, or None. Sets the message ID of an IDMPAUTO."""
    if options.message is None:
        options.message = _derived_message(pairs)
    memory = stream.idempotence
    memory.forget_old(now)
    earlier_id = memory.find(producer, options.message)
    memory.duplicates += earlier_id is not None
    return earlier_id


def _derived_message(pairs: list[bytes]) -> bytes:
    try:
        return message_of(pairs)
    except ModuleNotFoundError:
        from spark_streams.base.extras import lacks  # a start of the engine has no time for it

        raise CommandError(f"ERR {lacks('XADD IDMPAUTO', 'xxhash')}") from None


def _after_add(
    engine: Engine, db: Database, key: bytes, stream: StoredStream, options: AddOptions, new: int, answer: bytes,
    fields: bytes,
) -> None:  # fmt: skip
    """Remember the message, trim the stream, and record both in the journal."""
    producer, message = options.producer, options.message
    if producer is not None and message is not None:
        stream.idempotence.remember(producer, message, new)
    removed = options.trim(stream)
    journal = engine.journal
    if journal is None:
        return
    journal.begin()
    in_one_command = bool(removed) and message is None and options.policy is Policy.KEEPREF
    journal.added(db, key, answer, fields, stream.length if in_one_command else None)
    if producer is not None and message is not None:
        journal.write(db, b"XIDMPRECORD", key, producer, message, entryid.text(new))
    if removed and not in_one_command:
        journal.trimmed(db, key, stream.length, options.policy)
    journal.end()


def _explicit(ms: int, seq: int | None, last: int) -> int:
    if seq is not None:
        new = (ms << 64) | seq
    elif last >> 64 == ms and last & U64_MAX != U64_MAX:
        new = last + 1
    else:
        new = ms << 64
    if new <= last:
        raise CommandError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return new


@command("xtrim", -4, "write effect", (1, 1, 1))
def xtrim(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT n] [KEEPREF|DELREF|ACKED]"""
    options = parse_add_or_trim(engine, args, adding=False)[0]
    stream = client.db.stream(args[1])
    removed = options.trim(stream) if stream is not None else 0
    if removed and stream is not None:
        client.db.touch(args[1], removed)
        if engine.journal is not None:
            engine.journal.trimmed(client.db, args[1], stream.length, options.policy)
    return integer(removed)


@command("xlen", 2, "readonly fast", (1, 1, 1))
def xlen(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XLEN key"""
    stream = client.db.stream(args[1])
    return integer(stream.length if stream is not None else 0)


def _range(client: Client, args: list[bytes], backwards: bool) -> Reply:
    start, end = interval(args[3], args[2]) if backwards else interval(args[2], args[3])
    count: int | None = None
    index = 4
    while index < len(args):
        if args[index].lower() != b"count" or index + 1 == len(args):
            raise syntax_error()
        count = max(integer_of(args[index + 1]), 0)
        index += 2
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


@command("xsetid", -3, "write denyoom fast", (1, 1, 1))
def xsetid(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XSETID key last-id [ENTRIESADDED n] [MAXDELETEDID id]"""
    last = entry_id(args[2])
    added: int | None = None
    deleted: int | None = None
    index = 3
    while index < len(args):
        option, more = args[index].lower(), len(args) - index - 1
        if option == b"entriesadded" and more:
            added = integer_of(args[index + 1])
            if added < 0:
                raise CommandError("ERR entries_added must be positive")
        elif option == b"maxdeletedid" and more:
            deleted = entry_id(args[index + 1])
            if last < deleted:
                raise CommandError("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise syntax_error()
        index += 2
    stream = existing(client.db.stream(args[1]))
    if last < stream.max_deleted_id:
        raise CommandError("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
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


@command("xcfgset", -2, "write fast", (1, 1, 1))
def xcfgset(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE messages]"""
    stream = existing(client.db.stream(args[1]))
    bounds = {b"idmp-duration": (MAX_DURATION, "seconds"), b"idmp-maxsize": (MAX_SIZE, "entries")}
    settings: dict[bytes, int] = {}
    for index in range(2, len(args), 2):
        option = args[index].lower()
        if option not in bounds or index + 1 == len(args):
            raise syntax_error()
        shown = option.decode().upper()
        if option in settings:
            raise CommandError(f"ERR {shown} specified multiple times")
        highest, unit = bounds[option]
        settings[option] = integer_of(args[index + 1])
        if not 1 <= settings[option] <= highest:
            raise CommandError(f"ERR {shown} must be between 1 and {highest} {unit}")
    if not settings:
        raise CommandError("ERR At least one parameter must be specified")
    if stream.idempotence.configure(settings.get(b"idmp-duration"), settings.get(b"idmp-maxsize")):
        client.db.touch_groups(args[1])
    return OK


@command("xidmprecord", 5, "write denyoom fast", (1, 1, 1))
def xidmprecord(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """XIDMPRECORD key producer message id"""
    message_id = entry_id(args[4])
    if not args[2]:
        raise CommandError("ERR producer ID must be non-empty")
    if not args[3]:
        raise CommandError("ERR idempotent ID must be non-empty")
    stream = existing(client.db.stream(args[1]))
    if stream.find(message_id) is None:
        raise CommandError("ERR No such message in stream")
    recorded_id = stream.idempotence.find(args[2], args[3])
    if engine.loading and recorded_id not in (None, message_id):
        # The message had expired when it was added again. While a file is loaded, no message expires.
        stream.idempotence.forget(args[2], args[3])
        recorded_id = None
    if recorded_id is None:
        stream.idempotence.remember(args[2], args[3], message_id)
        client.db.touch_groups(args[1])
    elif recorded_id != message_id:
        raise CommandError("ERR IID already exists for this producer with a different stream ID")
    return OK
