"""Intervals at which an idle query asks the server (source.limits has what they mean), in seconds."""

PATTERN_INTERVAL = 2.0
PATTERN_INTERVAL_EACH = 1e-4
IDLE_CHECK = 5.0
IDLE_CHECK_EACH = 1.0
