"""Measured costs of an entry, a stream and a trigger. `python -m tools.sizing calibrate` measures them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

REFERENCE = Path(__file__).with_name("reference.json")


@dataclass(frozen=True)
class Costs:
    """Costs on one machine. µs are processor time per entry, ms are elapsed time."""

    machine: str
    cores: int  # shared by server, driver and tasks when these costs were measured

    server_add_us: float  # XADD of a producer, pipelined
    server_group_us: float  # XREADGROUP, XRANGE, XPENDING and XACK
    server_no_ack_us: float  # XRANGE, and the position of the group
    server_at_least_once_us: float  # XADD of the sink
    server_exactly_once_us: float  # XADD of the sink in MULTI … EXEC, with the ledger

    driver_us: float  # the source's Python process on the driver: reserve, list as pending, acknowledge
    read_us: float  # Python worker and JVM: receive, decode, pass to Spark
    at_least_once_us: float  # the same for the sink: encode, send
    exactly_once_us: float

    trigger_ms: float  # a trigger of one stream and one task, without entries
    sink_trigger_ms: float  # what an exactly-once sink adds to it
    stream_ms: float  # what each stream adds to it: commands, offsets, the stream's page in the task
    overlap: float  # elapsed time of a large trigger's work, per time of the busiest resource
    task_ms: float  # what each task adds to it, divided by the cores

    entry_bytes: float  # server memory of an entry, in addition to its values
    pending_bytes: float  # server memory of a pending entry


def read_costs(path: Path = REFERENCE) -> Costs:
    """Return the costs of a file that `calibrate` has written."""
    return Costs(**json.loads(path.read_text(encoding="utf-8")))


def costs_as_json(costs: Costs) -> str:
    """Return the costs as the text of such a file."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(costs).items()}
    return json.dumps(rounded, indent=2) + "\n"
