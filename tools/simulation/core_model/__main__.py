"""Run random histories, and count what went wrong.

python -m tools.simulation.core_model --seeds 0-100 [--subject product]
python -m tools.simulation.core_model --seeds 0-20 --subject both

With `both`, the histories of model and product are compared step by step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tools.simulation.core_model.clients import InProcess, Scenario
from tools.simulation.core_model.product import Product, differences
from tools.simulation.core_model.scenarios import ALIKE, KINDS, SCENARIOS, kind_of, limit_of
from tools.simulation.core_model.world import MODEL, Model, World


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-100", help="A-B: from A up to below B, of each scenario")
    parser.add_argument("--subject", choices=["model", "product", "both"], default="model", help="what is tested")
    parser.add_argument("--scenario", default="", help="only those whose name begins so")
    parser.add_argument("--show", type=int, default=3, help="seeds to print per scenario and kind")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    server, seeds = InProcess(), range(first, last)
    if arguments.subject == "model":
        return judge(server, MODEL, seeds, SCENARIOS, arguments.scenario, arguments.show)
    product = Product(server)
    with product.installed():
        if arguments.subject == "both":
            return compare(product, seeds, arguments.scenario)
        scenarios = [s for s in SCENARIOS if "poison" not in s.powers]
        return judge(server, product, seeds, scenarios, arguments.scenario, arguments.show)


def compare(product: Product, seeds: range, name: str) -> int:
    """Print where model and product differ. Return 1 if they do."""
    begun, found = time.process_time(), 0
    scenarios = [scenario for scenario in ALIKE if scenario.name.startswith(name)]
    for scenario in scenarios:
        for seed in seeds:
            for difference in differences(product, seed, scenario):
                found += 1
                print("strict " if scenario.strict else "lenient", difference, flush=True)
    print(f"{len(scenarios) * len(seeds)} pairs in {time.process_time() - begun:.0f} s of a processor, {found} differ")
    return bool(found)


def judge(
    server: InProcess, subject: Model | Product, seeds: range, scenarios: Sequence[Scenario], begins: str, show: int
) -> int:
    """Print what went wrong. Return 1 if no limit explains it."""
    scenarios = [scenario for scenario in scenarios if scenario.name.startswith(begins)]
    print(f"{'scenario':47} histories batches kills stops | " + " | ".join(KINDS))
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    begun, total = time.process_time(), 0
    for scenario in scenarios:
        counts: Counter[str] = Counter()
        wrong: Counter[str] = Counter()
        mode = "strict" if scenario.strict else "lenient"
        for seed in seeds:
            world = World(server, seed, scenario, subject)
            world.run()
            counts.update(world.counts)
            total += 1
            for failure in set(map(kind_of, world.wrong)):
                wrong[next(kind for kind in KINDS if failure.startswith(kind))] += 1
                kinds[failure] += 1
                examples.setdefault(failure, []).append(f"{scenario.name}/{mode}:{seed}")
        name = f"{scenario.name} {mode}"
        print(f"{name:47} {len(seeds):9} {counts['batches']:7} {counts['kills']:5} {counts['stops']:5} | "
              + " | ".join(f"{wrong[kind]:{len(kind)}}" for kind in KINDS), flush=True)  # fmt: skip
    print(f"{total} histories in {time.process_time() - begun:.0f} s of a processor")
    for failure, number in sorted(kinds.items(), key=lambda item: (limit_of(item[0]), item[0])):
        limit = limit_of(failure)
        print(f"{number:5} {f'limit {limit}' if limit else 'UNEXPLAINED'}: {failure}   e.g. "
              + " ".join(examples[failure][: show]))  # fmt: skip
    return any(not limit_of(failure) for failure in kinds)


if __name__ == "__main__":
    sys.exit(main())
