"""Facts of a server, parsed from its replies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.base.numbers import parse_number

Version = tuple[int, ...]

REDIS, VALKEY, ENGINE = "Redis", "Valkey", "the bundled engine"


@dataclass(frozen=True)
class Clock:
    """Comparison of clocks. ahead_ms: of the server's clock, relative to this machine's; uncertain_ms: half of the
    reply time."""

    ahead_ms: float
    uncertain_ms: float


@dataclass(frozen=True)
class ServerFacts:
    """The facts. address: without its login; hello, info, client: replies of HELLO, INFO and CLIENT INFO; config: the
    settings of CONFIG GET; refused: commands that the user may not run; trims_by_acked: whether XTRIM supports ACKED,
    None: not known."""

    address: str
    hello: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    clock: Clock | None = None
    trims_by_acked: bool | None = None

    @property
    def kind(self) -> str:
        """Redis, Valkey, or the bundled engine."""
        if "rstream_version" in self.info or self.hello.get("server") == "rstream":
            return ENGINE
        is_valkey = "valkey_version" in self.info or self.hello.get("server") == "valkey"
        return VALKEY if is_valkey else REDIS

    @property
    def version(self) -> str:
        """The version; empty if the server does not report it."""
        field_name = {ENGINE: "rstream_version", VALKEY: "valkey_version"}.get(self.kind, "redis_version")
        return self.info.get(field_name) or self.hello.get("version", "")

    @property
    def mode(self) -> str:
        """standalone or cluster; empty if the server does not report it."""
        return self.info.get("redis_mode") or self.info.get("server_mode") or self.hello.get("mode", "")

    @property
    def role(self) -> str | None:
        """master or replica; None if the server does not report it."""
        role = self.info.get("role") or self.hello.get("role")
        return "replica" if role == "slave" else role

    @property
    def is_replica(self) -> bool:
        """Whether it follows a master."""
        return self.role == "replica"

    @property
    def user(self) -> str:
        """The user of the connection; empty if the server does not report it."""
        return self.client.get("user", "")

    @property
    def database(self) -> str:
        """The number of the database; empty if the server does not report it."""
        return self.client.get("db", "")

    def number(self, name: str) -> int:
        """Return a number of INFO; 0 if it is missing or not a number."""
        return whole_or_zero(self.info.get(name, "0"))

    def setting(self, name: str) -> int | None:
        """Return a number of CONFIG GET; None if it is missing."""
        value = self.config.get(name)
        return None if value is None else whole_or_zero(value)

    def is_older_than(self, *version: int) -> bool:
        """Whether the server is a Redis before this version."""
        return self.kind == REDIS and bool(self.version) and numbers(self.version) < version


def numbers(version: str) -> Version:
    """Return `7.0.15` as (7, 0, 15), up to the first part that is not a number."""
    parts: list[int] = []
    for part in version.split("."):
        number = parse_number(part)
        if number is None:
            break
        parts.append(number)
    return tuple(parts)


def whole_or_zero(text: str) -> int:
    """Return a whole number, 0 if the text is not one."""
    return parse_number(text, minimum=-(2**63)) or 0
