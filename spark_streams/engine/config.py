"""CONFIG GET and SET: the settings that clients ask for, with their real values.

Only what the engine honours can be changed. Setting another option to the value that it has is fine, anything else is
an error: nothing is accepted and ignored.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from spark_streams.engine.borders import NodeLimits
from spark_streams.engine.replies import CommandError

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


class Config:
    """Named settings, all texts as in redis.conf."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self.fixed: dict[str, str] = {
            "save": "",
            "appendonly": "no",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "databases": "16",
            "timeout": "0",
            "port": "0",
            "bind": "",
            "unixsocket": "",
            "dir": "",
            "requirepass": "",
            "cluster-enabled": "no",
            "io-threads": "1",
            "proto-max-bulk-len": "536870912",
        }

    def get(self, patterns: list[str]) -> dict[str, str]:
        """The settings whose names match one of the glob patterns."""
        values = {
            **self.fixed,
            "stream-node-max-entries": str(self._limits.entries),
            "stream-node-max-bytes": str(self._limits.bytes),
        }
        lowered = [pattern.lower() for pattern in patterns]
        return {name: value for name, value in values.items() if any(fnmatchcase(name, one) for one in lowered)}

    def set(self, pairs: list[tuple[str, str]]) -> None:
        """Change settings, all or none. Raises CommandError."""
        limits = NodeLimits(self._limits.entries, self._limits.bytes)
        for name, value in pairs:
            if name == "stream-node-max-entries":
                limits.entries = _number(name, value)
            elif name == "stream-node-max-bytes":
                limits.bytes = _number(name, value)
            elif name not in self.fixed:
                raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            elif self.fixed[name] != value:
                raise CommandError(
                    f"ERR CONFIG SET failed (possibly related to argument '{name}') - can't be changed in this engine"
                )
        self._limits.entries, self._limits.bytes = limits.entries, limits.bytes


def _number(name: str, value: str) -> int:
    digits = value.rstrip("bBkKmMgG")
    unit = _UNITS.get(value[len(digits) :].lower())
    if not (digits.isascii() and digits.isdigit()) or unit is None:
        raise CommandError(
            f"ERR CONFIG SET failed (possibly related to argument '{name}') - argument couldn't be parsed into an "
            "integer"
        )
    return int(digits) * unit
