"""All mutants, and what has found each of them, as it was noted last (found.tsv): a page prints it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.simulation.mutants.archive import ARCHIVE
from tools.simulation.mutants.groups import GROUPS
from tools.simulation.mutants.letters import LETTERS
from tools.simulation.mutants.modes import MODES
from tools.simulation.mutants.mutant import Mutant
from tools.simulation.mutants.refusals import REFUSALS
from tools.simulation.mutants.sink import LEASE, SINK
from tools.simulation.mutants.trigger import TRIGGER

MUTANTS: tuple[Mutant, ...] = (*TRIGGER, *GROUPS, *MODES, *LETTERS, *ARCHIVE, *SINK, *LEASE, *REFUSALS)
NAMED = {mutant.name: mutant for mutant in MUTANTS}
FILE = Path(__file__).with_name("found.tsv")


class Note(NamedTuple):
    """The play that fails with a mutant, and the kind of its failure."""

    play: str
    kind: str


def read_notes() -> dict[str, Note]:
    """Return what is noted, by mutant."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: Note(*fields) for name, *fields in (line.split("\t") for line in lines)}


def write_notes(notes: Mapping[str, Note]) -> None:
    """Replace what is noted."""
    FILE.write_text("".join("\t".join((name, *note)) + "\n" for name, note in sorted(notes.items())), encoding="utf-8")
