"""How long a server is waited for. An address carries it to whoever connects; `reply` is option replyTimeout, for the
rest users have no options."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """In seconds. limit: of trying without any success, then RetriesExhaustedError; first_connection: the same where
    nobody has ever been connected, because the address may be wrong; first_pause, longest_pause: between two tries;
    reply: without a single byte, then the connection is given up; replicas: until they have what was written, which
    is asked for in turns shorter than `reply`; sleep: how a pause passes."""

    limit: float = 60.0
    first_connection: float = 5.0
    first_pause: float = 0.05
    longest_pause: float = 2.0
    reply: float = 5.0
    replicas: float = 10.0
    sleep: Callable[[float], None] = time.sleep


DEFAULT_PATIENCE = Patience()
