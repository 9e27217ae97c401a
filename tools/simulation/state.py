"""How far many plans have come, in a file: after a stop they go on from there."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.side_by_side import ROOT
from tools.simulation.soak import Tally


@dataclass
class State:
    """The plans of one mix. The file has those of each. before: tally of earlier processes; commits: plans of each."""

    path: Path
    mix: str
    left: range
    before: Tally
    commits: dict[str, int]

    @classmethod
    def read(cls, path: Path, additions: Sequence[str], seeds: range) -> State:
        """Read how far these plans have come. Raises SystemExit if those in the file begin with another seed."""
        mix = "+".join(additions) or "plain"
        known: dict[str, Any] | None = _content(path).get(mix)
        if known is None:
            return cls(path, mix, seeds, Tally(), {})
        if known["first"] != seeds.start:
            raise SystemExit(f"{path} has the {mix} plans from {known['first']}: set --seed {known['first']}")
        others = {name: runs for name, runs in known["commits"].items() if name != _commit()}
        if others:
            print(f"{path} has {mix} plans of other commits, too: {others}", file=sys.stderr)
        return cls(path, mix, range(known["next"], seeds.stop), Tally(**known["tally"]), known["commits"])

    def after(self, next_seed: int, tally: Tally) -> Tally:
        """Write down that the seeds below have run. Return the tally of all. tally: of this process."""
        total = Tally()
        total.add(self.before)
        total.add(tally)
        own = {_commit(): self.commits.get(_commit(), 0) + tally.runs}
        known = {
            "first": next_seed - total.runs,
            "next": next_seed,
            "commits": {**self.commits, **own},
            "tally": asdict(total),
        }
        written = self.path.with_suffix(".written")
        written.write_text(json.dumps({**_content(self.path), self.mix: known}, indent=1))
        written.replace(self.path)
        return total


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


@functools.cache
def _commit() -> str:
    """The commit of this checkout, with a plus sign if files differ from it."""
    asked = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
