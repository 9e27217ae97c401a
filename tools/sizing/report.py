"""Print the results of the check and of the simulation as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable

from tools.sizing.check import Result
from tools.sizing.model import Plan
from tools.sizing.simulation import Outcome, Scenario

HEAD_OF_CHECK = "| run | predicted | measured | ratio |\n|---|---|---|---|"
HEAD_OF_SIMULATION = (
    "| entries/s | queries | shards | cores | busiest shard | network | driver | cores | trigger | before its tasks "
    "| lag p50 · p99 | backlog peak | memory peak of a server | catch up | limit |\n"
    "|" + "---|" * 15
)


def row_of_check(result: Result) -> str:
    """Return a row of the table."""
    values = (f"{value:,.0f} {result.unit}" for value in (result.predicted, result.measured))
    return f"| {result.name} | {' | '.join(values)} | {result.ratio:.2f} |"


def row_of_simulation(scenario: Scenario, outcome: Outcome) -> str:
    """Return a row of the table."""
    workload, machines, use = scenario.workload, scenario.machines, outcome.use
    cells = [
        f"{workload.rate:,.0f}",
        f"{scenario.queries}",
        f"{machines.servers}",
        f"{machines.cores}",
        *(f"{use[name]:.0%}" for name in ("server thread", "network", "driver", "executor cores")),
        f"{outcome.trigger_seconds:.2f} s" if outcome.triggers else "none ended",
        f"{outcome.fixed_seconds:.2f} s",
        f"{outcome.lag_p50:.1f} · {outcome.lag_p99:.1f} s" if outcome.triggers else "nothing committed",
        f"{outcome.peak_backlog / 1e6:.1f} M",
        f"{outcome.peak_memory / 1e6:,.0f} MB",
        " · ".join(_seconds(recovery.catch_up) for recovery in outcome.recoveries) or "-",
        outcome.limit if outcome.stable else f"{outcome.limit}: the backlog grows",
    ]
    return f"| {' | '.join(cells)} |"


def text_of_plan(plan: Plan) -> str:
    """Return the plan in a line for each machine or figure."""
    return "\n".join(
        [
            f"servers                {plan.servers:,}, each with {plan.memory_bytes / 1e9:,.1f} GB of entries",
            f"server thread          {plan.server_utilisation:.0%}",
            f"queries                {plan.queries:,}",
            f"driver process         {plan.driver_utilisation:.0%}",
            f"cores of all executors {plan.cores:,}",
            f"trigger                {plan.trigger_ms / 1000:.2f} s",
            f"highest utilisation    {plan.limit}",
        ]
    )


def failovers(scenarios: Iterable[Scenario]) -> str:
    """Return one line for the failovers of each number of shards."""
    lines = {
        f"{scenario.machines.servers} shards: "
        + ", ".join(f"shard {away.shard} at {away.start:.0f} s for {away.seconds:.1f} s" for away in scenario.failovers)
        for scenario in scenarios
    }
    return "\n".join(sorted(lines))


def _seconds(value: float) -> str:
    return "not in the run" if value == float("inf") else f"{value:.1f} s"
