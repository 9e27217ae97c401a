"""All mutants, as `table.txt` has them: below each file of the product, blocks of

name: what is then broken.
the play that has found it last · the kind of its failure
- the text that is replaced; if nothing takes its place, its lines are left out
+ the text in its place
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tools.simulation.mutants.mutant import Mutant, Note

FILE = Path(__file__).with_suffix(".txt")


def parsed(table: str) -> Iterator[Mutant]:
    """Yield the mutants of a table."""
    file = ""
    for block in table.rstrip("\n").split("\n\n"):
        head, *lines = block.split("\n")
        if not lines:
            file = head
            continue
        name, _, breaks = head.partition(": ")
        old, new = ([line[2:] for line in lines if line.startswith(sign)] for sign in ("- ", "+ "))
        play, _, kind = lines[0].partition(" · ")
        found = None if lines[0].startswith("- ") else Note(play, kind)
        yield Mutant(name, breaks, file, "\n".join(old) + "\n" * (not new), "\n".join(new), found)


def printed(mutants: Iterable[Mutant]) -> str:
    """Return the table of these mutants."""
    blocks = []
    for file, of_file in groupby(mutants, lambda mutant: mutant.file):
        blocks += [file, *map(_block, of_file)]
    return "\n\n".join(blocks) + "\n"


def _block(mutant: Mutant) -> str:
    lines = [f"{mutant.name}: {mutant.breaks}"]
    lines += [] if mutant.found is None else [" · ".join(mutant.found)]
    lines += [f"- {line}" for line in mutant.text.removesuffix("\n").split("\n")]
    lines += [f"+ {line}" for line in mutant.instead.split("\n")] if mutant.instead else []
    return "\n".join(lines)


MUTANTS = tuple(parsed(FILE.read_text(encoding="utf-8")))
NAMED: Mapping[str, Mutant] = {mutant.name: mutant for mutant in MUTANTS}


def write_down(found: Mapping[str, Note]) -> None:
    """Write into the table what has found these mutants."""
    noted = [replace(mutant, found=found.get(mutant.name, mutant.found)) for mutant in MUTANTS]
    FILE.write_text(printed(noted), encoding="utf-8")
