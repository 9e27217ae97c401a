"""The rules of an older server: what Redis 7.0 answers in another way than the engine, which imitates 8.x.

XNACK, XACKDEL, XDELEX; XTRIM … ACKED, KEEPREF, DELREF     unknown, a syntax error
XINFO CONSUMERS                                            `idle` counts reads that found something; no `inactive`
XINFO STREAM                                               no counts of XADD IDMP
entries that were trimmed unread                           entries-read counts only what is delivered (R16)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from spark_streams.engine.command_table import COMMANDS, Command
from spark_streams.engine.resp.wire_replies import Array, CommandError, Map, bulk
from spark_streams.engine.store.group import StoredGroup, distance, has_tombstone

version = ["8"]  # of the running life: 8 or 7.0
_UNKNOWN = (b"xnack", b"xackdel", b"xdelex")
_NEW_OPTIONS = {b"acked", b"keepref", b"delref"}
_NEW_FIELDS = (b"idmp-", b"pids-", b"iids-")


def _refused(own: Any, engine: Any, client: Any, args: list[bytes]) -> Any:
    if version[0] == "7.0":
        raise CommandError(b"ERR unknown command '%b', with args beginning with: " % args[0])
    return own(engine, client, args)


def _trimmed(own: Any, engine: Any, client: Any, args: list[bytes]) -> Any:
    if version[0] == "7.0" and _NEW_OPTIONS & {word.lower() for word in args[2:]}:
        raise CommandError("ERR syntax error")
    return own(engine, client, args)


def _described(own: Any, engine: Any, client: Any, args: list[bytes]) -> Any:
    reply = own(engine, client, args)
    if version[0] == "7.0" and len(args) == 3:
        return Map([pair for pair in reply.pairs if not any(new in bytes(pair[0]) for new in _NEW_FIELDS)])
    return reply


def _consumers(own: Any, engine: Any, client: Any, args: list[bytes]) -> Any:
    reply = own(engine, client, args)
    if version[0] != "7.0":
        return reply
    shown = []
    for one in reply.items:
        (_, name), (_, pending), (_, idle), (_, inactive) = one.pairs
        idle = idle if bytes(inactive) == b":-1\r\n" else inactive
        words = (b"name", b"pending", b"idle")
        shown.append(Map([(bulk(word), value) for word, value in zip(words, (name, pending, idle), strict=True)]))
    return Array(shown)


def _count_read(own: Any, group: StoredGroup, slices: Sequence[Any], last: int, stream: Any) -> None:
    if version[0] != "7.0":
        own(group, slices, last, stream)
        return
    for node, low, high in slices:
        for entry_id in node.id_list(low, high):
            is_counted = group.entries_read is not None and not has_tombstone(stream, entry_id)
            group.entries_read = (group.entries_read or 0) + 1 if is_counted else distance(stream, entry_id)


@contextlib.contextmanager
def as_versions() -> Iterator[None]:
    """Let all engines of this process follow the rules of `version`."""
    changed: list[tuple[Command, Any]] = [(COMMANDS[name], _refused) for name in _UNKNOWN]
    changed += [(COMMANDS[b"xtrim"], _trimmed), (COMMANDS[b"xinfo"].subcommands[b"stream"], _described)]
    changed.append((COMMANDS[b"xinfo"].subcommands[b"consumers"], _consumers))
    with pytest.MonkeyPatch.context() as patch:
        for spec, handler in changed:
            patch.setattr(spec, "handler", partial(handler, spec.handler))
        own = StoredGroup._count_read
        patch.setattr(StoredGroup, "_count_read", lambda group, *given: _count_read(own, group, *given))
        yield
