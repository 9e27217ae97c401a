"""Fetch the facts of a server. Nothing on it changes. A command that the user may not run is noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from spark_streams.connector.admin.groups import milliseconds
from spark_streams.connector.admin.streams import info, pairs
from spark_streams.connector.wire.connection.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.replies.replies import is_not_permitted
from spark_streams.operations.doctor.server_facts import Clock, ServerFacts

SETTINGS = (
    *("appendonly", "appendfsync", "save", "stop-writes-on-bgsave-error"),
    *("min-replicas-to-write", "replica-read-only", "maxclients", "timeout"),
    *("proto-max-bulk-len", "client-query-buffer-limit", "client-output-buffer-limit"),
)
_ROUNDS = 3  # requests for the time: the fastest one is the most exact


def fetch_facts(server: Connection, now: Callable[[], float] = time.time) -> ServerFacts:
    """Return the facts of a server. now: this machine's clock, in seconds. Raises ServerUnreachableError."""
    hello, info_reply, client, trimming = server.pipeline(
        [("HELLO", "2"), ("INFO",), ("CLIENT", "INFO"), ("COMMAND", "DOCS", "XTRIM")]
    )
    config, may_configure = _settings(server)
    refused = [
        name for name, is_there in (("INFO", isinstance(info_reply, bytes)), ("CONFIG", may_configure)) if not is_there
    ]
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


def _settings(server: Connection) -> tuple[Mapping[str, str], bool]:
    """Return the settings, and whether the user may run CONFIG. Old or managed servers do not have all settings."""
    replies = server.pipeline([("CONFIG", "GET", name) for name in SETTINGS])
    settings = {name: reply[1] for name, reply in zip(SETTINGS, replies, strict=True) if _is_setting(reply)}
    return {name: value.decode("utf-8", "replace") for name, value in settings.items()}, bool(settings)


def _is_setting(reply: Reply) -> bool:
    return not isinstance(reply, ReplyError) and len(reply) == 2


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
