"""Timeouts for a server. An address carries them to each connection. Only `reply` is an option (replyTimeout)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """All in seconds. limit: retries without success before RetriesExhaustedError. first_connection: the same limit if
    no connection was ever made, because the address may be wrong. first_pause, longest_pause: between two attempts.
    reply: silence after which a connection is closed. replicas: wait for replicas to receive a write, in turns shorter
    than `reply`. sleep: function that pauses.
    """

    limit: float = 60.0
    first_connection: float = 5.0
    first_pause: float = 0.05
    longest_pause: float = 2.0
    reply: float = 5.0
    replicas: float = 10.0
    sleep: Callable[[float], None] = time.sleep


DEFAULT_PATIENCE = Patience()
