"""Which mutants a plan reaches: it executes the changed statement. A plan that does not reach a mutant runs as it does
without it, so it need not run.

A call before each changed statement notes the mutant's name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import takewhile
from types import CodeType
from typing import Any

from tools.simulation.mutants.mutant import Mutant, exchange

_NOTE, _NOTE_UNLESS = "_reached_mutant", "_reached_mutant_unless"
_CONSTANT = re.compile(r"\s*(?:el)?if (True(?=:)|False(?=:| and ))")


class Reach:
    """Notes the mutants that are reached. names: since they were cleared."""

    def __init__(self, mutants: Iterable[Mutant]) -> None:
        self.names: set[str] = set()
        of_module: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in mutants:
            of_module[mutant.module].append(mutant)
        self._codes = {module: _noting(found) for module, found in of_module.items()}

    def install(self) -> None:
        """Change the modules of the mutants in this process so."""
        for module, code in self._codes.items():
            prepare(vars(import_module(module)), self.names)
            exchange(module, code)


def _noting(mutants: Sequence[Mutant]) -> CodeType:
    """Return the code of a module that notes its mutants."""
    tree = ast.parse(mutants[0].whole())
    blocks = list(blocks_of(tree))
    for mutant in mutants:
        note(blocks, mutant)
    return compile(ast.fix_missing_locations(tree), mutants[0].path, "exec", dont_inherit=True)


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


def note(blocks: Iterable[list[ast.stmt]], mutant: Mutant) -> None:
    """Insert the call before the innermost statement that is changed; or around its condition, if that is constant in
    the mutant: only the other outcome reaches it."""
    line, name = changed_line(mutant), mutant.name
    block, index = _innermost(blocks, line)
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


def _innermost(blocks: Iterable[list[ast.stmt]], line: int) -> tuple[list[ast.stmt], int]:
    found: tuple[list[ast.stmt], int] | None = None
    for block in blocks:  # outer ones first
        for index, statement in enumerate(block):
            if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
                found = block, index
    assert found is not None, line
    return found


def blocks_of(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block
