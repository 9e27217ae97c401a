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

from spark_streams.engine.command_table import COMMANDS
from spark_streams.engine.resp.wire_replies import Array, CommandError, Map
from spark_streams.engine.store.group import StoredGroup, distance, has_tombstone

version = ["8"]  # of the running life: 8 or 7.0
_NEW_OPTIONS = {b"acked", b"keepref", b"delref"}
_NEW_FIELDS = (b"idmp-", b"pids-", b"iids-")


def _refused(own: Any, args: list[bytes]) -> Any:
    raise CommandError(b"ERR unknown command '%b', with args beginning with: " % args[0])


def _trimmed(own: Any, args: list[bytes]) -> Any:
    if _NEW_OPTIONS & {word.lower() for word in args[2:]}:
        raise CommandError("ERR syntax error")
    return own()


def _described(own: Any, args: list[bytes]) -> Any:
    kept = [pair for pair in own().pairs if not any(new in bytes(pair[0]) for new in _NEW_FIELDS)]
    return Map(kept) if len(args) == 3 else own()


def _consumers(own: Any, args: list[bytes]) -> Any:
    shown = []
    for one in own().items:
        name, pending, idle, inactive = one.pairs
        shown.append(Map([name, pending, idle if bytes(inactive[1]) == b":-1\r\n" else (idle[0], inactive[1])]))
    return Array(shown)


def _older(own: Any, instead: Any) -> Any:
    """Return a handler of a command: another one on Redis 7.0."""

    def handle(engine: Any, client: Any, args: list[bytes]) -> Any:
        plain = partial(own, engine, client, args)
        return instead(plain, args) if version[0] == "7.0" else plain()

    return handle


def _count_read(own: Any, group: StoredGroup, slices: Sequence[Any], last: int, stream: Any) -> None:
    if version[0] != "7.0":
        own(group, slices, last, stream)
        return
    for entry_id in (entry_id for node, low, high in slices for entry_id in node.id_list(low, high)):
        is_counted = group.entries_read is not None and not has_tombstone(stream, entry_id)
        group.entries_read = (group.entries_read or 0) + 1 if is_counted else distance(stream, entry_id)


@contextlib.contextmanager
def as_versions() -> Iterator[None]:
    """Let all engines of this process follow the rules of `version`."""
    info, own = COMMANDS[b"xinfo"].subcommands, StoredGroup._count_read
    changed = [(COMMANDS[name], _refused) for name in (b"xnack", b"xackdel", b"xdelex")]
    changed += [(COMMANDS[b"xtrim"], _trimmed), (info[b"stream"], _described), (info[b"consumers"], _consumers)]
    with pytest.MonkeyPatch.context() as patch:
        for spec, instead in changed:
            patch.setattr(spec, "handler", _older(spec.handler, instead))
        patch.setattr(StoredGroup, "_count_read", lambda group, *given: _count_read(own, group, *given))
        yield
