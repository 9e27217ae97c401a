"""DUMP and RESTORE of streams in Redis' format."""

from __future__ import annotations

from spark_streams.engine.access_guard import OUT_OF_MEMORY
from spark_streams.engine.client import Client
from spark_streams.engine.command_table import command
from spark_streams.engine.commands.command_arguments import integer_of, syntax_error
from spark_streams.engine.core import Engine
from spark_streams.engine.persistence import aof_snapshot
from spark_streams.engine.persistence.rdb import BadDataError, TooLargeError, TooManyElementsError
from spark_streams.engine.persistence.stream_payload import OtherTypeError, WrongVersionError, load
from spark_streams.engine.persistence.stream_payload import dump as payload_of
from spark_streams.engine.resp.wire_replies import NIL, OK, CommandError, Reply, bulk
from spark_streams.engine.store.keyspace import size_of
from spark_streams.engine.store.stream import StoredStream

_USUAL_GROWTH = 8  # bytes in memory for a byte of a payload, usually
# Reading a payload blocks the other clients: for at most 50 ms, unless it is large. Payloads of Redis have up to four
# elements for each byte (compressed entries of many small numbers), and take up to 200 bytes of memory.
_FEW_ELEMENTS, _ELEMENTS_PER_BYTE = 100_000, 4
_LITTLE_MEMORY, _MEMORY_PER_BYTE = 64 << 20, 400
_UNCOMPRESSED = "Send a payload that is not compressed: CONFIG SET rdbcompression no on its server, then DUMP"


@command("dump", 2, "readonly", (1, 1, 1))
def dump(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """DUMP key: of a stream"""
    value = client.db.get(args[1])
    if value is None:
        return NIL
    if not isinstance(value, StoredStream):
        raise CommandError("ERR this engine dumps streams only")
    return bulk(payload_of(value, engine.now))


@command("restore", -4, "write denyoom effect", (1, 1, 1))
def restore(engine: Engine, client: Client, args: list[bytes]) -> Reply:
    """RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]"""
    replace, absolute = _restore_options(args)
    db, key = client.db, args[1]
    if not replace and db.get(key) is not None:
        raise CommandError("BUSYKEY Target key name already exists.")
    ttl = integer_of(args[2])
    if ttl < 0:
        raise CommandError("ERR Invalid TTL value, must be >= 0")
    value = _value_of(args[3], engine)
    due = ttl + (0 if absolute or not ttl else engine.now)
    existed = replace and db.remove(key, changes=0)
    journal = engine.journal
    if due and due <= engine.now:
        db.changes += existed
        if existed and journal is not None:
            journal.write(db, b"DEL", key)
        return OK
    db.set(key, value)
    if engine.memory.limit:
        engine.memory.grow(size_of(value))
    if due:
        db.expires[key] = due
    if journal is not None:
        journal.restored(db, key, existed, aof_snapshot.value_commands(key, value, db.expires.get(key)))
    return OK


def _restore_options(args: list[bytes]) -> tuple[bool, bool]:
    """Return REPLACE and ABSTTL.

    IDLETIME and FREQ, which Redis uses to evict, are only checked. Raises CommandError.
    """
    replace = absolute = False
    idle = frequency = -1
    index = 4
    while index < len(args):
        option, more = args[index].lower(), index + 1 < len(args)
        if option == b"replace":
            replace = True
        elif option == b"absttl":
            absolute = True
        elif option == b"idletime" and more and frequency < 0:
            idle = integer_of(args[index + 1])
            if idle < 0:
                raise CommandError("ERR Invalid IDLETIME value, must be >= 0")
            index += 1
        elif option == b"freq" and more and idle < 0:
            frequency = integer_of(args[index + 1])
            if not 0 <= frequency <= 255:
                raise CommandError("ERR Invalid FREQ value, must be >= 0 and <= 255")
            index += 1
        else:
            raise syntax_error()
        index += 1
    return replace, absolute


def _value_of(payload: bytes, engine: Engine) -> StoredStream:
    """Return the stream of a payload. Raises CommandError if it cannot be read, or takes too much memory."""
    limit = engine.config.number("proto-max-bulk-len") + _USUAL_GROWTH * len(payload)
    available_bytes = engine.memory.available_bytes()
    affordable = limit if available_bytes is None else min(available_bytes, limit)
    expanded = max(_LITTLE_MEMORY, _MEMORY_PER_BYTE * len(payload))
    elements = max(_FEW_ELEMENTS, _ELEMENTS_PER_BYTE * len(payload))
    try:
        if engine.loading:
            return load(payload, engine.node_limits, engine.now, affordable)
        return load(payload, engine.node_limits, engine.now, min(affordable, expanded), elements)
    except TooManyElementsError:
        raise CommandError(f"ERR this payload expands to over {elements} elements. {_UNCOMPRESSED}") from None
    except TooLargeError:
        if available_bytes is not None and available_bytes <= min(limit, expanded):
            raise CommandError(OUT_OF_MEMORY) from None
        if expanded < limit:
            raise CommandError(f"ERR this payload expands to over {expanded} bytes. {_UNCOMPRESSED}") from None
        raise CommandError(
            f"ERR the value of this payload takes over {limit} bytes of memory. A larger proto-max-bulk-len allows it"
        ) from None
    except WrongVersionError:
        raise CommandError("ERR DUMP payload version or checksum are wrong") from None
    except OtherTypeError:
        raise CommandError("ERR this engine restores streams only, and the payload is of another type") from None
    except BadDataError:
        raise CommandError("ERR Bad data format") from None
