"""Which mutants a plan reaches: it executes the changed statement. A plan that does not reach a mutant runs as it does
without it, so it need not run.

The modules of all mutants are imported with a call before each changed statement, which notes the mutant's name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import takewhile
from types import CodeType, ModuleType
from typing import Any

from tools.simulation.mutants.mutant import Mutant

_NOTE, _NOTE_UNLESS = "_reached_mutant", "_reached_mutant_unless"
_CONSTANT = re.compile(r"\s*(?:el)?if (True(?=:)|False(?=:| and ))")


class Reach:
    """Notes the mutants that are reached. names: since they were cleared; always: while modules were imported."""

    def __init__(self, mutants: Iterable[Mutant]) -> None:
        self.names: set[str] = set()
        self._mutants: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in mutants:
            self._mutants[mutant.module].append(mutant)

    def install(self) -> None:
        """Let this process import the modules of the mutants so."""
        assert not self._mutants.keys() & sys.modules.keys()
        sys.meta_path.insert(0, _Finder(self._mutants, self.names))


class _Finder(MetaPathFinder):
    def __init__(self, mutants: dict[str, list[Mutant]], names: set[str]) -> None:
        self._mutants, self._names = mutants, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        mutants = self._mutants.get(fullname)
        if not mutants:
            return None
        return spec_from_file_location(fullname, mutants[0].path, loader=_Loader(mutants, self._names))


class _Loader(SourceFileLoader):
    def __init__(self, mutants: list[Mutant], names: set[str]) -> None:
        super().__init__(mutants[0].module, str(mutants[0].path))
        self._mutants, self._names = mutants, names

    def exec_module(self, module: ModuleType) -> None:
        prepare(module.__dict__, self._names)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self._mutants[0].whole())
        for mutant in self._mutants:
            note(tree, mutant)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def prepare(namespace: dict[str, Any], names: set[str]) -> None:
    """Put the functions that are called into the namespace of a module. They add to `names`."""

    def unless(name: str, constant: bool, condition: Any) -> Any:
        """Note a condition that is not what it is in the mutant. Return it."""
        if bool(condition) != constant:
            names.add(name)
        return condition

    namespace.update({_NOTE: names.add, _NOTE_UNLESS: unless})


def changed_line(mutant: Mutant) -> int:
    """Return the number of the first line that differs."""
    whole = mutant.whole()
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mutant.text, mutant.instead, strict=False)))
    place = whole.index(mutant.text) + same
    place += len(whole[place:]) - len(whole[place:].lstrip())  # a statement that is left out begins behind its indent
    return whole.count("\n", 0, place) + 1


def note(tree: ast.Module, mutant: Mutant) -> None:
    """Insert the call before the innermost statement that is changed; or around its condition, if that is constant in
    the mutant: only the other outcome reaches it."""
    line, name = changed_line(mutant), mutant.name
    block, index = _innermost(tree, line)
    statement = block[index]
    constant = _constant_condition(mutant, line)
    if isinstance(statement, ast.If) and constant is not None:
        words = [ast.Constant(name), ast.Constant(constant), statement.test]
        statement.test = ast.copy_location(ast.Call(ast.Name(_NOTE_UNLESS, ast.Load()), words, []), statement.test)
    else:
        call = ast.Expr(ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(name)], []))
        block.insert(index, ast.copy_location(call, statement))


def _constant_condition(mutant: Mutant, line: int) -> bool | None:
    """Return what the condition at this line of the mutant always is; None: there is none, or it is not constant."""
    found = _CONSTANT.match(mutant.source().splitlines()[line - 1])
    return None if found is None else found[1] == "True"


def _innermost(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int]:
    found: tuple[list[ast.stmt], int] | None = None
    for block in _blocks(tree):  # outer ones first
        for index, statement in enumerate(block):
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                found = block, index
    assert found is not None, line
    return found


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block
