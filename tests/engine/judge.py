"""What a real server knows, and what its version does otherwise than the newest: the basis of every comparison."""

from __future__ import annotations

import re
from typing import Any

from tests.engine.wire import Failed, Wire

Command = tuple[str, ...]

STREAM_COMMANDS = (
    "XACK", "XACKDEL", "XADD", "XAUTOCLAIM", "XCFGSET", "XCLAIM", "XDEL", "XDELEX", "XGROUP", "XIDMPRECORD", "XINFO",
    "XLEN", "XNACK", "XPENDING", "XRANGE", "XREAD", "XREADGROUP", "XREVRANGE", "XSETID", "XTRIM",
)  # fmt: skip

NEWER_COMMANDS = {"XACKDEL", "XCFGSET", "XDELEX", "XIDMPRECORD", "XNACK"}
# Options that came after 7.0. A server that does not document them is not asked about them.
NEWER_OPTIONS = {"KEEPREF", "DELREF", "ACKED", "IDMP", "IDMPAUTO", "CLAIM", "MAXCOUNT", "MAXSIZE"}

# Fields of XINFO that differ by nature, and fields by the version that brought them.
TIMES = {b"seen-time", b"active-time", b"idle", b"inactive"}
TREE = {b"radix-tree-keys", b"radix-tree-nodes"}
SINCE = {
    **dict.fromkeys((b"active-time", b"inactive"), (7, 2)),
    **dict.fromkeys((b"idmp-duration", b"idmp-maxsize", b"pids-tracked"), (8, 6)),
    **dict.fromkeys((b"iids-tracked", b"iids-added", b"iids-duplicates"), (8, 6)),
    b"nacked-count": (8, 8),
}
GENERATED = re.compile(rb"1[5-9]\d{11}-\d+")


class Judge:
    """A real server to compare with."""

    def __init__(self, client: Wire) -> None:
        info = client.call("INFO", "server").decode()
        self.valkey = "valkey_version" in info
        version = re.search(r"redis_version:(\d+)\.(\d+)\.(\d+)", info)
        assert version is not None
        self.version = tuple(map(int, version.groups()))
        self._options: dict[str, set[str]] = {}
        documented = client.call("COMMAND", "DOCS", *STREAM_COMMANDS)
        for name, doc in zip(documented[::2], documented[1::2], strict=True):
            self._options[name.decode().upper()] = set(_texts(doc))

    def knows(self, command: Command) -> bool:
        """Whether the server has this command with these options."""
        options = self._options.get(command[0], set() if command[0] == "DEL" else None)
        if options is None:
            return False
        if command[0].startswith("XREAD") and "+" in command and (self.version < (7, 4) or self.valkey):
            return False
        return all(word in options for word in NEWER_OPTIONS.intersection(command))

    def takes(self, command: Command, engine: Wire) -> bool:
        """Whether the server does this as the newest one does; where it does not, the two would part for good."""
        if command[0] == "XSETID" and self.version < (7, 2):
            # From 7.2 on, not below the greatest deleted id.
            info = engine.call("XINFO", "STREAM", command[1])
            if not isinstance(info, Failed):
                pairs = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
                return _id(command[2]) >= _id(pairs[b"max-deleted-entry-id"].decode())
        return True

    def before(self, command: Command) -> list[Command]:
        """What to send first: until 7.2 a consumer was made only when it got something."""
        if self.version >= (7, 2):
            return []
        if command[0] in ("XCLAIM", "XAUTOCLAIM"):
            return [("XGROUP", "CREATECONSUMER", *command[1:4])]
        if command[0] == "XREADGROUP":
            named = command[command.index("STREAMS") + 1 :]
            return [("XGROUP", "CREATECONSUMER", key, *command[2:4]) for key in named[: len(named) // 2]]
        return []

    def masked(self, command: Command, reply: Any) -> Any:
        """A reply without what may differ, by nature or by version."""
        if command[0] == "XPENDING" and len(command) > 3 and isinstance(reply, list):
            return [[row[0], row[1], row[2] // 900, row[3]] for row in reply]  # idle times only roughly
        if "CLAIM" in command and isinstance(reply, list | dict):
            return self._claims(reply)
        return self._plain(reply)

    def _claims(self, reply: Any) -> Any:
        streams = reply.items() if isinstance(reply, dict) else reply
        return [
            [key, [[e[0], e[1], e[2] // 900 if e[2] < 10**11 else "ever", e[3]] if len(e) == 4 else e for e in entries]]
            for key, entries in streams
        ]

    def _plain(self, reply: Any) -> Any:
        if isinstance(reply, Failed):
            return "error", self._error(str(reply))
        if isinstance(reply, dict):
            return dict(self._pairs(reply.items()))
        if isinstance(reply, list):
            if reply and isinstance(reply[0], bytes) and reply[0] in (b"name", b"length") and len(reply) % 2 == 0:
                return self._pairs(zip(reply[::2], reply[1::2], strict=True))
            return [self._plain(item) for item in reply]
        if isinstance(reply, int) and reply > 10**11:
            return "a time"
        if isinstance(reply, bytes) and GENERATED.fullmatch(reply):
            return "an id"
        return reply

    def _pairs(self, pairs: Any) -> list[tuple[bytes, Any]]:
        return [
            (name, self._field(name, value))
            for name, value in pairs
            if self.version >= SINCE.get(name, ()) and not (self.valkey and SINCE.get(name, ()) > (7, 2))
        ]

    def _field(self, name: bytes, value: Any) -> Any:
        if name in TIMES:
            return value == -1
        if name in TREE:
            # The engine has no radix tree.
            return None
        if name in (b"lag", b"entries-read") and (self.version < (8, 2) or self.valkey):
            # Counted otherwise from 7.2 on in several steps; the last is that ENTRIESREAD is capped (8.2.2).
            return None
        return self._plain(value)

    def _error(self, text: str) -> str:
        if "Unbalanced" in text and (self.version < (7, 4) or self.valkey):
            # 7.0 says XREAD of XREADGROUP, too; 7.4 knows `+`.
            return "Unbalanced"
        return text


def _id(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


def _texts(value: Any) -> list[str]:
    if isinstance(value, bytes):
        return [value.decode("utf-8", "replace")]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []
