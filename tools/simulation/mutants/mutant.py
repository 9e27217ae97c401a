"""A mutant: a file of the product, the text that is replaced, and the text in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Mutant:
    """One change. file: in the package spark_streams; text: occurs once in it; breaks: what is broken then."""

    name: str
    file: str
    text: str
    instead: str
    breaks: str

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

    def install(self) -> None:
        """Let this process import the changed module. It must not have imported it yet."""
        assert self.module not in sys.modules, self.module
        sys.meta_path.insert(0, _Finder(self))


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return spec_from_file_location(fullname, self._mutant.path, loader=_Loader(self._mutant))


class _Loader(SourceFileLoader):
    """Compiles the changed text, whatever bytecode is cached."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.source(), self.path, "exec", dont_inherit=True)
