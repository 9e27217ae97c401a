"""The server's clock beside this machine's. Pure."""

from __future__ import annotations

from spark_streams.doctor.finding import Finding, Level
from spark_streams.doctor.server_facts import ServerFacts

_ABOUT = "clock"
NOTED, WARNED = 1_000, 60_000  # ms


def look(facts: ServerFacts) -> list[Finding]:
    """How far apart they are; run it on the machine of the driver."""
    if facts.clock is None:
        return []
    apart = abs(facts.clock.ahead_ms)
    if apart - facts.clock.uncertain_ms < NOTED:
        return [Finding(Level.OK, _ABOUT, "within a second of this machine's")]
    way = "ahead of" if facts.clock.ahead_ms > 0 else "behind"
    return [
        Finding(
            Level.WARNING if apart - facts.clock.uncertain_ms >= WARNED else Level.NOTE, _ABOUT,
            f"{apart / 1000:,.0f} s {way} this machine's",
            "ids, _timestamp, retention and lag go by the server's, current_timestamp() by Spark's machines: windows "
            "and delays are off by that much. No promise of the source or the sink stands on a clock",
            "NTP on both machines",
        )
    ]  # fmt: skip
