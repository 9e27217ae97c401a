"""Run random histories, and count what went wrong.

python -m tools.simulation.core_model --seeds 0-100 --server engine
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tools.simulation.core_model.scenarios import KINDS, SCENARIOS, kind_of, limit_of
from tools.simulation.core_model.world import EngineServer, RedisServer, World


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0-100", help="A-B: from A up to below B, of each scenario")
    parser.add_argument("--server", default="engine", help="engine (in this process), or a URL of a server")
    parser.add_argument("--scenario", default="", help="only those whose name begins so")
    parser.add_argument("--show", type=int, default=3, help="seeds to print per scenario and kind")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    server = EngineServer() if arguments.server == "engine" else RedisServer(arguments.server)
    scenarios = [s for s in SCENARIOS if s.name.startswith(arguments.scenario)]
    print(f"{'scenario':47} histories batches kills stops | " + " | ".join(KINDS))
    kinds: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    begun, total = time.time(), 0
    for scenario in scenarios:
        counts: Counter[str] = Counter()
        wrong: Counter[str] = Counter()
        mode = "strict" if scenario.strict else "lenient"
        for seed in range(first, last):
            world = World(server, seed, scenario)
            world.run()
            counts.update(world.counts)
            total += 1
            for failure in set(map(kind_of, world.wrong)):
                wrong[next(kind for kind in KINDS if failure.startswith(kind))] += 1
                kinds[failure] += 1
                examples.setdefault(failure, []).append(f"{scenario.name}/{mode}:{seed}")
        name = f"{scenario.name} {mode}"
        print(f"{name:47} {last - first:9} {counts['batches']:7} {counts['kills']:5} {counts['stops']:5} | "
              + " | ".join(f"{wrong[kind]:{len(kind)}}" for kind in KINDS), flush=True)  # fmt: skip
    print(f"{total} histories in {time.time() - begun:.0f} s")
    for failure, number in sorted(kinds.items(), key=lambda item: (limit_of(item[0]), item[0])):
        limit = limit_of(failure)
        print(f"{number:5} {f'limit {limit}' if limit else 'UNEXPLAINED'}: {failure}   e.g. "
              + " ".join(examples[failure][: arguments.show]))  # fmt: skip
    return any(not limit_of(failure) for failure in kinds)


if __name__ == "__main__":
    sys.exit(main())
