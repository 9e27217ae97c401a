"""The figures of the house, beside what they should be: `scripts/check --figures` prints them.

They are read from the text of the package and of tools: nothing is imported but Python's own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "spark_streams"
HOUSES = ("base", "connector", "engine", "operations", "jobs")
SMALL = 60  # lines of a small file


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str  # dotted, below the package
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        """The direct child of the package that it belongs to."""
        return self.name.partition(".")[0]

    @property
    def import_lines(self) -> int:
        """Number of lines of its imports, those within functions, too."""
        imports = [node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)

    @property
    def head(self) -> int:
        """Number of lines before what it defines: docstring and imports. 0: it defines nothing."""
        for node in self.tree.body:
            is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            if not (isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) or is_for_types):
                return node.lineno - 1
        return 0

    def imported(self, known: Iterable[str]) -> Iterator[str]:
        """Yield the modules of the package that it imports."""
        for node in ast.walk(self.tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{one.name}" for one in node.names]
            for name in names:
                below = name.removeprefix(f"{PACKAGE}.")
                if below != name:
                    yield below if below in known else below.rpartition(".")[0]


def modules_of(root: Path = ROOT) -> dict[str, Module]:
    """Return the modules of the package by their names; of `__init__`, the name is its folder's."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = Module(name, path.read_text(encoding="utf-8"))
    return found


def arrows(modules: dict[str, Module]) -> set[tuple[str, str]]:
    """Return which room imports which, without what users import of the package itself."""
    pairs = {(one.room, name.partition(".")[0]) for one in modules.values() for name in one.imported(modules)}
    return {(room, other) for room, other in pairs if other and room not in (other, "__init__", "__main__")}


def floors(pairs: set[tuple[str, str]]) -> int:
    """Return how many rooms stand on each other at most. Rooms in a circle, and those above it, count as one floor."""
    left, count = {room for pair in pairs for room in pair}, 0
    while left:
        standing = {room for room in left if not any(one == room and other in left for one, other in pairs)}
        left, count = left - (standing or left), count + 1
    return count


def ceilings(root: Path = ROOT) -> dict[str, int]:
    """Return the ceiling of each house, from the table of tests/project/test_layout.py."""
    text = (root / "tests" / "project" / "test_layout.py").read_text(encoding="utf-8")
    found = {}
    for node in ast.walk(ast.parse(text)):
        for name, house in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(name, ast.Constant) and isinstance(house, ast.Call) and ast.unparse(house.func) == "House":
                found[str(name.value)] = int(ast.literal_eval(house.args[-1]))
    return found


def names_of_classes(modules: dict[str, Module]) -> list[str]:
    """Return the names of classes outside of functions and classes that exist more than once."""
    counts = Counter(node.name for one in modules.values() for node in one.tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in counts.items() if count > 1)


def names_of_files(root: Path = ROOT) -> list[str]:
    """Return the names of files that exist more than once."""
    counts = Counter(path.name for path in (root / PACKAGE).rglob("*.py") if path.name != "__init__.py")
    return sorted(name for name, count in counts.items() if count > 1)


def figures(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """Return (figure, its value, its aim)."""
    modules = modules_of(root)
    pairs = arrows(modules)
    lines = sum(one.lines for one in modules.values())
    highest = ceilings(root)
    rows = [
        ("rooms", f"{len({room for pair in pairs for room in pair})}", "10"),
        ("floors", f"{floors(pairs)}", "6"),
        ("arrows", f"{len(pairs)}", "20"),
    ]
    for house, aim in zip(HOUSES, (800, 39_500, 13_300, 17_500, 5_400), strict=True):
        count = sum(one.lines for one in modules.values() if one.room == house)
        rows.append((f"lines of {house}, ceiling {highest[house]:,}", f"{count:,}", f"{aim:,}"))
    outside = {name for one in modules.values() if one.room == "operations" for name in one.imported(modules)}
    doors = sum(name.startswith("connector.") for name in outside)
    importing, before = (sum(getattr(one, part) for one in modules.values()) for part in ("import_lines", "head"))
    no_ack = sum(bool(re.search("noAck|no_ack", one.text)) for one in modules.values())
    tools = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tools").rglob("*.py"))
    return [
        *rows,
        ("files of the package", f"{len(modules)}", "520"),
        (f"files of at most {SMALL} lines", f"{sum(one.lines <= SMALL for one in modules.values())}", "40"),
        ("lines that import", f"{importing / lines:.1%}", "7.0%"),
        ("lines before the first definition", f"{before / lines:.1%}", "11.0%"),
        ("modules of the connector that operations imports", f"{doors}", "25"),
        ("class names that exist twice", f"{len(names_of_classes(modules))}", "10"),
        ("file names that exist twice", f"{len(names_of_files(root))}", "25"),
        ("files that name noAck", f"{no_ack}", "14"),
        ("lines of tools", f"{tools:,}", "18,000"),
    ]


def main() -> int:
    """Print the table."""
    rows = figures()
    width = max(len(name) for name, *_ in rows)
    print(f"{'figure':<{width}}  {'now':>8}  {'at most':>8}")
    for name, value, aim in rows:
        print(f"{name:<{width}}  {value:>8}  {aim:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
