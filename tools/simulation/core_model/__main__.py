"""Run the plans of all scenarios with the model, or with model and product, and print what went wrong.

python -m tools.simulation.core_model --seeds 0-100 [--scenario "new checkpoint"]
python -m tools.simulation.core_model --seeds 0-20 --subject both

With `both`, the runs of model and product are compared step by step. `scripts/simulate` runs the product alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

from tools.simulation.core_model.scenarios import ALIKE, SCENARIOS, differences, failures
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.simulation.core_model", description=__doc__)
    parser.add_argument("--seeds", default="0-100", help="A-B: from A up to below B, of each scenario")
    parser.add_argument("--subject", choices=["model", "both"], default="model", help="what is tested")
    parser.add_argument("--scenario", default="", help="only those whose name begins so")
    parser.add_argument("--story", action="store_true", help="print each run step by step")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    is_both = arguments.subject == "both"
    begun, found, server = time.process_time(), defaultdict[str, list[str]](list), ProcessServer()
    scenarios = [one for one in (ALIKE if is_both else SCENARIOS) if one.name.startswith(arguments.scenario)]
    with product(server), server.client(decode_responses=True) as client:
        for scenario in scenarios:
            for seed in range(first, last):
                if is_both:
                    wrong = differences(server, client, scenario, seed)
                else:
                    told = print if arguments.story else None
                    wrong = [one.kind for one in failures(server, client, scenario, seed, tell=told)]
                for kind in wrong:
                    found[kind].append(f"{scenario}/{seed}")
    for kind, places in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(places):5}  {kind}   {' · '.join(places[:3])}")
    runs, seconds = len(scenarios) * (last - first), time.process_time() - begun
    print(f"{runs} {'pairs' if is_both else 'runs'} in {seconds:.0f} s of a processor, {len(found)} kinds of failures")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
