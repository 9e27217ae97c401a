"""Small replies: raw bytes to values, the errors among them and what they mean, lists of names and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import hiredis

from spark_streams.connector.wire.connection.connection import Reply, ReplyError
from spark_streams.connector.wire.connection.named_errors import EXHAUSTED


def each_reply(raw: bytes | memoryview) -> Iterator[Reply]:
    """Yield the replies in a row as Python values; error replies stay values.

    Raises hiredis.ProtocolError at the first byte that belongs to no reply.
    """
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(raw)  # type: ignore[arg-type]  # it takes any buffer
    while (reply := reader.gets()) is not False:
        yield reply


def parse_replies(raw: bytes | memoryview) -> list[Reply]:
    return list(each_reply(raw))


def find_errors(replies: Sequence[Reply]) -> list[tuple[int, ReplyError]]:
    return [(position, reply) for position, reply in enumerate(replies) if isinstance(reply, ReplyError)]


def may_hold_errors(raw: bytes) -> bool:
    """Whether there can be an error reply among these.

    Fast, and correct for replies that are IDs, integers or statuses: none of them has a line that starts with `-`.
    """
    return raw.startswith(b"-") or b"\n-" in raw


def milliseconds(reply: Sequence[bytes]) -> int:
    """Return the server's time in milliseconds since the epoch, from the reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def pairs(reply: Sequence[Reply]) -> dict[bytes, Reply]:
    """Return `[name, value, name, value …]`, RESP2's form of a map, by name."""
    items = iter(reply)
    return dict(zip(items, items, strict=True))


def info(reply: bytes) -> dict[str, str]:
    """Return INFO's `name:value` lines, by name."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


# -- the meaning of error replies: no other module examines their texts ------------------------------------------------

# An error reply begins with its code: NOGROUP, BUSYGROUP, WRONGTYPE, OOM … But Redis uses plain ERR for many different
# errors, which only the sentence after it distinguishes. Those sentences are here, in the words of Redis, Valkey and
# the bundled engine. Each function accepts any reply; it is false for a reply that is no error. A caller for which such
# an error is an answer names it by its function (Commands.answer).

IDS_EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"
ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_ID_REFUSALS = ("The ID specified in XADD", "Invalid stream ID")


def is_error(reply: Reply) -> TypeGuard[ReplyError]:
    """Any error. For a caller that reads all replies before it raises one, as that of a transaction."""
    return isinstance(reply, ReplyError)


def is_wrong_type(reply: Reply) -> TypeGuard[ReplyError]:
    """The key holds something that is not a stream."""
    return _has_code(reply, "WRONGTYPE")


def is_no_group(reply: Reply) -> TypeGuard[ReplyError]:
    """The stream, or its consumer group, does not exist."""
    return _has_code(reply, "NOGROUP")


def is_not_permitted(reply: Reply) -> TypeGuard[ReplyError]:
    """The user has no right to the command, or to a key."""
    return _has_code(reply, "NOPERM")


def is_busy_group(reply: Reply) -> TypeGuard[ReplyError]:
    """XGROUP CREATE: the group exists already."""
    return _has_code(reply, "BUSYGROUP")


def is_out_of_memory(reply: Reply) -> TypeGuard[ReplyError]:
    """The server's memory is full (maxmemory), and the command could need more of it."""
    return _has_code(reply, "OOM")


def is_no_such_key(reply: Reply) -> TypeGuard[ReplyError]:
    """XINFO, XSETID: the stream does not exist."""
    return _says(reply, "no such key")


def is_key_required(reply: Reply) -> TypeGuard[ReplyError]:
    """XGROUP without MKSTREAM: the stream does not exist."""
    return _says(reply, "requires the key to exist")


def is_syntax_error(reply: Reply) -> TypeGuard[ReplyError]:
    """The server does not know one of the command's options."""
    return _says(reply, "syntax error")


def is_unknown_command(reply: Reply) -> TypeGuard[ReplyError]:
    """The server does not implement the command."""
    return _says(reply, "unknown command")


def is_forbidden(reply: Reply) -> TypeGuard[ReplyError]:
    """The user has no right to the command, or its operator has renamed it."""
    return is_not_permitted(reply) or is_unknown_command(reply)


def is_wrong_number_of_arguments(reply: Reply) -> TypeGuard[ReplyError]:
    """The server supports fewer options of the command."""
    return _says(reply, "wrong number of arguments")


def is_id_refusal(reply: Reply) -> TypeGuard[ReplyError]:
    """XADD: the given ID is invalid, or not above the last ID of the stream."""
    return any(_says(reply, sentence) for sentence in _ID_REFUSALS)


def is_exhausted(reply: Reply) -> TypeGuard[ReplyError]:
    """XADD: the stream has used its last possible ID."""
    return _says(reply, EXHAUSTED)


def is_id_form_unknown(reply: Reply) -> TypeGuard[ReplyError]:
    """XADD: the server does not accept the ID's form."""
    return _says(reply, "Invalid stream ID")


def _has_code(reply: Reply, code: str) -> TypeGuard[ReplyError]:
    return isinstance(reply, ReplyError) and reply.code == code


def _says(reply: Reply, sentence: str) -> TypeGuard[ReplyError]:
    return _has_code(reply, "ERR") and sentence in str(reply)
