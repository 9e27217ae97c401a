"""What a server says of itself, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.model.numbers import parse_number

Version = tuple[int, ...]

REDIS, VALKEY, ENGINE = "Redis", "Valkey", "the bundled engine"


@dataclass(frozen=True)
class Clock:
    """ahead_ms: of this machine's clock, the server's; uncertain_ms: the answer's way takes so long."""

    ahead_ms: float
    uncertain_ms: float


@dataclass(frozen=True)
class ServerFacts:
    """address: without its login; hello: what HELLO says, as text; info: INFO's lines; config: what CONFIG GET says of
    what was asked; client: CLIENT INFO's; refused: the questions that this user may not ask; trims_by_acked: whether
    its XTRIM knows ACKED, None: not known."""

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
        """As it says; empty where it does not."""
        own = {ENGINE: "rstream_version", VALKEY: "valkey_version"}.get(self.kind, "redis_version")
        return self.info.get(own) or self.hello.get("version", "")

    @property
    def mode(self) -> str:
        """standalone or cluster; empty where it does not say."""
        return self.info.get("redis_mode") or self.info.get("server_mode") or self.hello.get("mode", "")

    @property
    def role(self) -> str | None:
        """master or replica; None where it does not say."""
        told = self.info.get("role") or self.hello.get("role")
        return "replica" if told == "slave" else told

    @property
    def is_replica(self) -> bool:
        """Whether it follows a master."""
        return self.role == "replica"

    @property
    def user(self) -> str:
        """Whom the url's login makes us; empty where the server does not say."""
        return self.client.get("user", "")

    @property
    def database(self) -> str:
        """Its number; empty where the server does not say."""
        return self.client.get("db", "")

    def number(self, name: str) -> int:
        """Of INFO; 0 where it is not there, or no number."""
        return whole_or_zero(self.info.get(name, "0"))

    def setting(self, name: str) -> int | None:
        """Of CONFIG; None where it was not told."""
        value = self.config.get(name)
        return None if value is None else whole_or_zero(value)

    def is_older_than(self, *version: int) -> bool:
        """Whether it is a Redis before this version."""
        return self.kind == REDIS and bool(self.version) and numbers(self.version) < version


def numbers(version: str) -> Version:
    """`7.0.15` as (7, 0, 15); what is no number ends it."""
    found: list[int] = []
    for part in version.split("."):
        number = parse_number(part)
        if number is None:
            break
        found.append(number)
    return tuple(found)


def whole_or_zero(text: str) -> int:
    """0 if it is no whole number."""
    return parse_number(text, minimum=-(2**63)) or 0


def size(count: int) -> str:
    """`900 bytes`, `1.5 MB`, `512 MB`, `2 GB`."""
    value: float = count
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
