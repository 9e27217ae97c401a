"""A mutant: a file of the product, the text that is replaced, and the text in its place."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

ROOT = Path(__file__).parents[3]


class Note(NamedTuple):
    """The play that fails with a mutant, and the kind of its failure."""

    play: str
    kind: str


@dataclass(frozen=True)
class Mutant:
    """One change within a function."""

    name: str
    breaks: str  # what is then broken
    file: str  # in the package spark_streams
    text: str  # occurs once in the file
    instead: str  # in its place
    found: Note | None = None  # what has found it last

    @property
    def path(self) -> Path:
        """The file in this checkout."""
        return ROOT / "spark_streams" / self.file

    @property
    def module(self) -> str:
        """Name of the module."""
        return "spark_streams." + self.file.removesuffix(".py").replace("/", ".")

    def whole(self) -> str:
        """Return the text of the file."""
        return self.path.read_text(encoding="utf-8")

    def source(self) -> str:
        """Return the changed text of the file. Raises ValueError if it does not have the text exactly once."""
        whole = self.whole()
        if whole.count(self.text) != 1:
            raise ValueError(f"mutant {self.name}: {self.file} has its text {whole.count(self.text)} times")
        return whole.replace(self.text, self.instead)

    def compiled(self) -> CodeType:
        """Return the code of the changed module."""
        return compile(self.source(), self.path, "exec", dont_inherit=True)

    def install(self) -> None:
        """Change the product in this process."""
        exchange(self.module, self.compiled())

    def remove(self) -> None:
        """Undo that."""
        exchange(self.module, compile(self.whole(), self.path, "exec", dont_inherit=True))

    def changed_line(self) -> int:
        """Return the number of the first line that differs."""
        pairs = zip(self.text, self.instead, strict=False)
        place = self.whole().index(self.text) + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        rest = self.whole()[place:]
        place += len(rest) - len(rest.lstrip())  # a statement that is left out begins behind its indent
        return self.whole().count("\n", 0, place) + 1


def exchange(module: str, code: CodeType) -> None:
    """Give each function of a module the code that it has in another text of the module. Functions whose name occurs
    more than once stay as they are."""
    import_module(module)
    gc.unfreeze()  # the engine's core hides all objects that there were when it began
    inner = list(functions_in(code))
    counts = Counter(found.co_qualname for found in inner)
    codes = {found.co_qualname: found for found in inner if counts[found.co_qualname] == 1}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__module__ == module:
            new = codes.get(function.__code__.co_qualname)
            if new is not None:
                function.__code__ = new


def functions_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions in this code, also of nested ones."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions_in(constant)
