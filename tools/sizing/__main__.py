"""`python -m tools.sizing calibrate|check|plan|simulate`: how large a server, how many executors."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.sizing.costs import REFERENCE, Costs, costs_as_json, read_costs


def main() -> int:
    """Run a command. Exit code 1: a prediction of `check` was wrong by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m tools.sizing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    calibrate = commands.add_parser("calibrate", help="measure the costs on this machine, and print them as JSON")
    calibrate.add_argument("--out", type=Path, metavar="FILE", help="write them to a file, too")
    check = commands.add_parser("check", help="predict three runs, run them, and compare")
    simulate = commands.add_parser("simulate", help="simulate many shards with failovers")
    plan = commands.add_parser("plan", help="servers, queries and cores for a workload")
    for parts in (check, plan, simulate):
        parts.add_argument("--costs", type=Path, default=REFERENCE, metavar="FILE", help="costs that calibrate wrote")
    for parts in (plan, simulate):
        parts.add_argument("--mode", choices=["group", "noAck"], default="group")
        parts.add_argument("--sink", choices=["at-least-once", "exactly-once"], help="into streams of the same servers")
        parts.add_argument("--value-bytes", type=float, default=100.0, help="bytes of an entry's values (default 100)")
        parts.add_argument("--interval", type=float, default=0.0, help="trigger interval in seconds (default 0)")
    plan.add_argument("--rate", type=float, required=True, help="entries per second")
    plan.add_argument("--streams", type=int, default=1, help="streams of all servers (default 1)")
    plan.add_argument("--utilisation", type=float, default=0.5, help="highest share of a resource (default 0.5)")
    plan.add_argument("--stored", type=float, default=3600.0, metavar="S", help="seconds until a trim (default 3600)")
    simulate.add_argument("--streams", type=int, default=10, help="streams of each shard (default 10)")
    simulate.add_argument("--cores", type=int, help="of all executors (default: one per 100,000 entries/s)")
    simulate.add_argument(
        "--queries", type=int, nargs="+", default=[1, 10], help="queries that divide the shards (default: 1, then 10)"
    )
    simulate.add_argument("--seconds", type=float, default=120.0, help="length of the run (default 120)")
    simulate.add_argument("--seed", type=int, default=1, help="of arrivals and failovers (default 1)")
    arguments = parser.parse_args()
    if arguments.command == "calibrate":
        return _calibrate(arguments.out)
    costs = read_costs(arguments.costs)
    if arguments.command == "check":
        return _check(costs)
    return _plan(costs, arguments) if arguments.command == "plan" else _simulate(costs, arguments)


def _calibrate(file: Path | None) -> int:
    from tools.sizing.calibrate import calibrate

    text = costs_as_json(calibrate())
    print(text, end="")
    if file:
        file.write_text(text, encoding="utf-8")
    return 0


def _check(costs: Costs) -> int:
    from tools.sizing.check import TOLERANCE, check
    from tools.sizing.report import HEAD_OF_CHECK, row_of_check

    print(HEAD_OF_CHECK)
    wrong = 0
    for result in check(costs):
        print(row_of_check(result), flush=True)
        wrong += not result.within
    print(f"{wrong} of 3 predictions are wrong by more than {TOLERANCE:.0%}" if wrong else "all predictions hold")
    return 1 if wrong else 0


def _plan(costs: Costs, arguments: argparse.Namespace) -> int:
    from tools.sizing.model import Workload, plan
    from tools.sizing.report import text_of_plan

    workload = Workload(
        arguments.rate, arguments.value_bytes, arguments.streams, arguments.mode, arguments.sink
    )  # fmt: skip
    print(text_of_plan(plan(costs, workload, arguments.utilisation, arguments.interval, arguments.stored)))
    return 0


def _simulate(costs: Costs, arguments: argparse.Namespace) -> int:
    from tools.sizing.model import Workload
    from tools.sizing.report import HEAD_OF_SIMULATION, failovers, row_of_simulation
    from tools.sizing.simulation import scenarios, simulate

    workload = Workload(0, arguments.value_bytes, arguments.streams, arguments.mode, arguments.sink)
    runs = scenarios(
        workload, arguments.cores, arguments.queries, arguments.interval, arguments.seconds, arguments.seed
    )  # fmt: skip
    print(f"Failovers: {failovers(runs)}\n" if runs else "", HEAD_OF_SIMULATION, sep="\n")
    for scenario in runs:
        print(row_of_simulation(scenario, simulate(costs, scenario)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
