"""What a server holds, as one value that can be compared; and engines without sockets to ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis

from spark_streams.engine.commands import new_engine
from spark_streams.engine.resp.wire_replies import encode
from tests.engine.wire import Failed

Call = Callable[..., Any]

# The moment of a consumer's last attempt is not in commands, the shape of the radix tree is nobody's business, lag is
# reckoned otherwise from version to version, and the others are in newer versions only.
_LEFT_OUT = {
    b"radix-tree-keys", b"radix-tree-nodes", b"seen-time", b"active-time", b"idle", b"inactive", b"lag",
    b"nacked-count", b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added",
    b"iids-duplicates",
}  # fmt: skip


class Inside:
    """An engine in this process, with a client: `call` runs a command and gives its reply."""

    def __init__(self, directory: Path | None = None, clock: Callable[[], int] | None = None, **settings: Any) -> None:
        self.engine = new_engine(clock) if clock is not None else new_engine()
        self.engine.config.start_with("enable-debug-command", "yes")
        if directory is not None:
            for name, value in {"dir": directory, "appendonly": "yes", **settings}.items():
                self.engine.config.start_with(name.replace("_", "-"), str(value))
        self.engine.persistence.start()
        self.client = self.engine.connect("test:0", "test:0")

    def call(self, *arguments: Any) -> Any:
        args = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        self.engine.tick()
        out: list[bytes] = []
        self.engine.run(self.client, [args], out, 1 << 30)
        self.engine.commit()
        reader = hiredis.Reader(replyError=Failed)
        reader.feed(b"".join(out))
        return reader.gets()

    def stop(self) -> None:
        self.engine.persistence.stop()


def state(call: Call, databases: tuple[int, ...] = (0,)) -> dict[tuple[int, bytes], Any]:
    """All keys of these databases with all that is known of them."""
    found: dict[tuple[int, bytes], Any] = {}
    for database in databases:
        call("SELECT", database)
        for key in call("KEYS", "*"):
            kind = call("TYPE", key)
            found[database, key] = (kind, _value(call, key, kind), (call("PTTL", key) + 50_000) // 100_000)
    call("SELECT", databases[0])
    return found


def _value(call: Call, key: bytes, kind: str | bytes) -> Any:
    match kind if isinstance(kind, str) else kind.decode():
        case "stream":
            return _without(call("XINFO", "STREAM", key, "FULL", "COUNT", "0")), _without(call("XINFO", "GROUPS", key))
        case "string":
            return call("GET", key)
        case "hash":
            flat = call("HGETALL", key)
            return dict(zip(flat[::2], flat[1::2], strict=True))
        case "set":
            return set(call("SMEMBERS", key))
        case "list":
            return call("LRANGE", key, 0, -1)
    raise AssertionError(f"{kind!r} is not known here")


def _without(reply: Any) -> Any:
    if not isinstance(reply, list):
        return str(reply) if isinstance(reply, Failed) else reply
    items: list[Any] = []
    parts = iter(reply)
    for item in parts:
        if isinstance(item, bytes) and item in _LEFT_OUT:
            next(parts)
        else:
            items.append(_without(item))
    return items


__all__ = ["Inside", "encode", "state"]
