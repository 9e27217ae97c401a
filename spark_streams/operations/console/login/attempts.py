"""Wrong passwords: after some of them, the next ones are refused at once. Nobody waits for the attempts of others.

An attempt counts from its begin. There is one at a time for a name from an address. The right password takes the
attempts back. An attempt that is refused does not count.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

WINDOW = 60.0  # seconds for which an attempt counts
PER_NAME = 5  # attempts for one name from one address
PER_ADDRESS = 20  # attempts from one address
_KEPT = 10_000  # names with addresses; the oldest are forgotten first

Key = tuple[str, ...]


class LoginAttempts:
    """now: a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._times: OrderedDict[Key, list[float]] = OrderedDict()
        self._running: set[Key] = set()

    def begin(self, name: str, address: str) -> float | None:
        """Count an attempt, and return None; or return the seconds after which the next attempt is not refused."""
        now, attempt = self._now(), (network_of(address), name)
        if attempt in self._running:
            return 1.0
        limits: dict[Key, int] = {attempt: PER_NAME, attempt[:1]: PER_ADDRESS}
        recent = {key: [time for time in self._times.get(key, ()) if time > now - WINDOW] for key in limits}
        waits = [recent[key][-limit] + WINDOW - now for key, limit in limits.items() if len(recent[key]) >= limit]
        if waits:
            return max(waits)
        for key, times in recent.items():
            self._times[key] = [*times, now]
            self._times.move_to_end(key)
        while len(self._times) > _KEPT:
            self._times.popitem(last=False)
        self._running.add(attempt)
        return None

    def end(self, name: str, address: str, is_right: bool) -> None:
        """End an attempt. The right password takes back the attempts for this name, and one of the address."""
        attempt = network_of(address), name
        self._running.discard(attempt)
        if is_right:
            self._times.pop(attempt, None)
            if times := self._times.get(attempt[:1]):
                times.pop()


def network_of(address: str) -> str:
    """Return what counts as one address: for IPv6 the network of 64 bits, which one machine can have to itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
