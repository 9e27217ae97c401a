"""What has found each mutant, as it was noted last (found.tsv): the hunt tries it first, and a page prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.simulation.mutants.hunt import Search

FILE = Path(__file__).with_name("found.tsv")


@dataclass(frozen=True)
class Note:
    """The play that fails with a mutant, and the kind of its failure."""

    play: str
    kind: str

    @classmethod
    def of(cls, search: Search) -> Note:
        """Note a search that has found its mutant."""
        return cls(search.play, " ".join(search.kind.split()))


def read() -> dict[str, Note]:
    """Return the notes, by mutant."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: Note(*fields) for name, *fields in (line.split("\t") for line in lines)}


def write(notes: Mapping[str, Note]) -> None:
    """Replace the notes."""
    lines = ["\t".join((name, *astuple(note))) for name, note in sorted(notes.items())]
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
