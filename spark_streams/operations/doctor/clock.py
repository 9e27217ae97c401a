"""Check of the server's clock against this machine's. Pure."""

from __future__ import annotations

from spark_streams.operations.doctor.finding import Finding, Level
from spark_streams.operations.doctor.server_facts import ServerFacts

_ABOUT = "clock"
NOTED, WARNED = 1_000, 60_000  # ms


def check(facts: ServerFacts) -> list[Finding]:
    """Compare the clocks. Run it on the driver's machine."""
    if facts.clock is None:
        return []
    apart = abs(facts.clock.ahead_ms)
    if apart - facts.clock.uncertain_ms < NOTED:
        return [Finding(Level.OK, _ABOUT, "within a second of this machine's")]
    direction = "ahead of" if facts.clock.ahead_ms > 0 else "behind"
    return [
        Finding(
            Level.WARNING if apart - facts.clock.uncertain_ms >= WARNED else Level.NOTE, _ABOUT,
            f"{apart / 1000:,.0f} s {direction} this machine's",
            "entry IDs, _timestamp, retention and lag use the server's clock, current_timestamp() uses the clocks of "
            "Spark's machines: windows and delays are wrong by this difference. Guarantees of the source and the sink "
            "do not depend on a clock",
            "run NTP on both machines",
        )
    ]  # fmt: skip
