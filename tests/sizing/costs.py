"""Costs in round numbers, so that a case can be computed by hand."""

from tools.sizing.costs import Costs

COSTS = Costs(
    machine="computed",
    cores=2,
    server_add_us=1.0,
    server_group_us=2.0,
    server_no_ack_us=0.5,
    server_at_least_once_us=1.0,
    server_exactly_once_us=1.5,
    driver_us=0.25,
    read_us=1.0,
    at_least_once_us=0.5,
    exactly_once_us=1.0,
    trigger_ms=100.0,
    sink_trigger_ms=50.0,
    stream_ms=0.5,
    overlap=1.25,
    task_ms=10.0,
    entry_bytes=40.0,
    pending_bytes=80.0,
)
