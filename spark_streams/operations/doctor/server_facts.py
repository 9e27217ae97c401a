"""What the doctor asks a server, its answers as values, and what a finding is. Nothing on the server changes.

A command that the user may not run is noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from spark_streams.base.numbers import parse_number
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.replies import info, is_error, is_not_permitted, milliseconds, pairs


class Level(StrEnum):
    """Severity. note: worth knowing, often intended; warning: entries may be lost, or a query may stop; danger: entries
    will be lost, or nothing can be written."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    DANGER = "danger"


_ORDER = list(Level)


@dataclass(frozen=True)
class ServerFinding:
    """One result of a check."""

    level: Level
    about: str  # its subject, a word or two
    observation: str  # the state of the server
    effect: str = ""  # on queries; may be empty
    remedy: str = ""  # what to do; may be empty
    nodes: tuple[str, ...] = ()  # of a cluster; empty for a single server and for the cluster as a whole

    def for_json(self) -> dict[str, object]:
        """Return the finding as a JSON object."""
        return {
            "level": str(self.level),
            "about": self.about,
            "said": self.observation,
            "effect": self.effect,
            "remedy": self.remedy,
            "nodes": list(self.nodes),
        }


Findings = Iterator[ServerFinding]


def worst(findings: Iterable[ServerFinding]) -> Level:
    """Return the worst level of the findings."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)


def sorted_by_level(findings: Iterable[ServerFinding]) -> list[ServerFinding]:
    """Return the findings with the worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: -_ORDER.index(finding.level))


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
    """What a server has answered."""

    address: str  # without its login
    hello: Mapping[str, str] = field(default_factory=dict)  # the reply of HELLO
    info: Mapping[str, str] = field(default_factory=dict)  # of INFO
    config: Mapping[str, str] = field(default_factory=dict)  # settings of CONFIG GET
    client: Mapping[str, str] = field(default_factory=dict)  # of CLIENT INFO
    refused: tuple[str, ...] = ()  # commands that the user may not run
    clock: Clock | None = None
    trims_by_acked: bool | None = None  # whether XTRIM supports ACKED; None: not known

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
    known = takewhile(lambda part: part is not None, map(parse_number, version.split(".")))
    return tuple(part or 0 for part in known)


def whole_or_zero(text: str) -> int:
    """Return a whole number, 0 if the text is not one."""
    return parse_number(text, minimum=-(2**63)) or 0


SETTINGS = (
    *("appendonly", "appendfsync", "save", "stop-writes-on-bgsave-error"),
    *("min-replicas-to-write", "replica-read-only", "maxclients", "timeout"),
    *("proto-max-bulk-len", "client-query-buffer-limit", "client-output-buffer-limit"),
)
# They change nothing. They are asked where CONFIG is refused: what else is refused tells services apart.
_PROBES = ("ACL USERS", "CLIENT LIST ID 1", "COMMAND COUNT", "LASTSAVE", "ROLE")
_ROUNDS = 3  # requests for the time: the fastest one is the most exact


def fetch_facts(server: Connection, now: Callable[[], float] = time.time) -> ServerFacts:
    """Return the facts of a server. now: this machine's clock, in seconds. Raises ServerUnreachableError."""
    hello, info_reply, client, trimming = server.pipeline(
        [("HELLO", "2"), ("INFO",), ("CLIENT", "INFO"), ("COMMAND", "DOCS", "XTRIM")]
    )
    config = _settings(server)
    refused = [name for name, is_there in (("INFO", isinstance(info_reply, bytes)), ("CONFIG", config)) if not is_there]
    probes = [probe.split() for probe in _PROBES] if not config else []
    refused += [words[0] for words, reply in zip(probes, server.pipeline(probes), strict=True) if is_error(reply)]
    return ServerFacts(
        address=str(server.address),
        hello=_texts(hello),
        info=info(info_reply) if isinstance(info_reply, bytes) else {},
        config=config,
        client=_words(client) if isinstance(client, bytes) else {},
        refused=tuple(refused),
        clock=_clock(server, now),
        trims_by_acked=None if is_not_permitted(trimming) else _names_acked(trimming),
    )


def _names_acked(docs: Reply) -> bool:
    """Whether COMMAND DOCS names ACKED, as a token or in the syntax. A server without DOCS (Redis before 7.0) has no
    ACKED."""
    if isinstance(docs, list):
        return any(map(_names_acked, docs))
    return isinstance(docs, bytes) and b"ACKED" in docs


def _settings(server: Connection) -> Mapping[str, str]:
    """Return the settings. Old or managed servers do not have all settings."""
    replies = server.pipeline([("CONFIG", "GET", name) for name in SETTINGS])
    found = {name: reply for name, reply in zip(SETTINGS, replies, strict=True) if not isinstance(reply, ReplyError)}
    return {name: reply[1].decode("utf-8", "replace") for name, reply in found.items() if len(reply) == 2}


def _clock(server: Connection, now: Callable[[], float]) -> Clock | None:
    """Return how far the server's clock is ahead of this machine's, by the fastest of several replies."""
    clocks = list[Clock]()
    for _ in range(_ROUNDS):
        sent_ms = now() * 1000
        [reply] = server.pipeline([("TIME",)])
        received_ms = now() * 1000
        if isinstance(reply, ReplyError):
            return None
        clocks.append(Clock(milliseconds(reply) - (sent_ms + received_ms) / 2, (received_ms - sent_ms) / 2))
    return min(clocks, key=lambda clock: clock.uncertain_ms)


def _texts(reply: Reply) -> Mapping[str, str]:
    """Return the names and values of a map that are text."""
    if not isinstance(reply, list):
        return {}
    fields = pairs(reply)
    return {
        name.decode(): value.decode("utf-8", "replace") for name, value in fields.items() if isinstance(value, bytes)
    }


def _words(line: bytes) -> Mapping[str, str]:
    """Parse `name=value name=value`."""
    return dict(word.split("=", 1) for word in line.decode("utf-8", "replace").split() if "=" in word)
