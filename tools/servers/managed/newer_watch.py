"""The bundled engine with the rule of Valkey 9.0.7 and 9.1.3: what changes a group breaks a WATCH of its stream."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

from spark_streams.engine.__main__ import main
from spark_streams.engine.commands.streams import pending_entries, reading
from spark_streams.engine.store.keyspace import Database
from tools.servers.server import Server, free_port, started

_of_redis = Database.touch_groups


_BREAKING = {reading.__name__, pending_entries.__name__}  # XREADGROUP, XACK, XCLAIM …; not XSETID and XGROUP


def _touch_groups(db: Database, key: bytes, changes: int = 1) -> None:
    if sys._getframe(1).f_globals["__name__"] in _BREAKING:
        for client in db.watched.get(key, ()):
            client.dirty = True
    _of_redis(db, key, changes)


@contextlib.contextmanager
def newer_watch() -> Iterator[None]:
    """The rule for engines in this process."""
    with mock.patch.object(Database, "touch_groups", _touch_groups):
        yield


@contextlib.contextmanager
def running_newer_engine() -> Iterator[Server]:
    """Start an engine with the rule, in a process of its own."""
    port = free_port()
    url, command = f"redis://127.0.0.1:{port}/0", [sys.executable, "-m", __name__, "--port", str(port)]
    with started("engine", url, command, lambda one: "ready on" in one.log()) as served:
        yield Server("engine", served.url)


if __name__ == "__main__":
    with newer_watch():
        sys.exit(main())
