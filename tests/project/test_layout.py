"""The rules of the layout: which folder may import which, and what stays apart. HOUSE: imports never run upwards."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import spark_streams
from spark_streams.jobs.arguments import JOBS as NAMES

ROOT = Path(spark_streams.__file__).parent
JOBS = ROOT.parent / "jobs"


class House(NamedTuple):
    """A folder of the package."""

    below: tuple[str, ...]  # houses that it may import
    doors: dict[str, tuple[str, ...]]  # of others, the only modules that it may import
    ceiling: int  # most lines of its modules: CONTRIBUTING.md, "One in, one out"


HOUSES = {
    "base": House((), {}, 800),
    "connector": House(("base",), {"engine": ("engine", "engine.launch.embedded")}, 40_180),
    "engine": House(("base",), {}, 13_300),
    "operations": House(
        ("base", "connector"),
        {
            "engine": ("engine", "engine.__main__"),
            "jobs": ("jobs.arguments", "jobs.command", "jobs.sample_config", "jobs.start"),
        },
        17_500,
    ),
    "jobs": House(("base", "connector"), {}, 5_505),
}
# Of what users import: a few lines each.
DOORS = ("__init__", "__main__", "cli", "datasource", "dead_letters", "errors", "pytest_plugin", "testing")
# What each folder of the connector may import of the others, from the ground up.
CONNECTOR = {
    "operator_commands": set(),
    "keys": set(),
    "counters": set(),
    "errors": set(),
    "cdc": {"errors", "spark"},
    "spark": {"counters", "errors", "keys"},
    "wire": {"errors", "keys"},
    "shards": {"errors", "keys", "operator_commands", "wire"},
    "options": {"errors", "shards", "wire"},
    "deadletter": {"errors", "keys", "operator_commands", "options", "spark", "wire"},
    "retention": {"errors", "keys", "wire"},
    "schemas": {"errors", "spark", "wire"},
    "lag": {"counters", "deadletter", "errors", "keys", "retention", "wire"},
    "source": {
        *("counters", "deadletter", "errors", "keys", "operator_commands", "options", "retention"),
        *("shards", "spark", "wire"),
    },
    "sink": {
        *("deadletter", "errors", "keys", "operator_commands", "options", "retention", "shards", "source", "spark"),
        "wire",
    },
    "watch": {"counters", "deadletter", "errors", "keys", "lag", "options", "shards", "source", "spark", "wire"},
    # They read and write streams by format("rstream"): source and sink are not among these.
    "running": {"errors", "options", "spark", "watch"},
    # What `operations` takes of all of them.
    "admin": {
        *("deadletter", "errors", "keys", "lag", "operator_commands", "options", "retention", "running", "schemas"),
        *("shards", "sink", "source", "wire"),
    },
    "datasource": {"errors", "options", "sink", "source", "spark", "wire"},
    "dead_letters": {"deadletter", "errors", "keys"},
    "testing": {"running"},
}
# Within the source: from entries and groups up to what Spark calls.
SOURCE = [
    {
        "commit_mark",
        "counting",
        "group_client",
        "limits",
        "offset",
        "partitioning",
        "pending_list",
        "settled",
        "stream_names",
    },
    {"group", "quota", "rows"},
    {"pending", "task"},
    {"batch_plan", "infer_schema", "trigger"},
    {"query"},
    {"archive"},
    {"batch_reader", "stream_reader"},
    {"history_reader"},
]
MOST_MODULES = 20  # of a folder


@functools.cache
def modules() -> list[tuple[str, ast.Module]]:
    """Name and tree of each module of the package. Parsing all of them takes seconds."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
    return [(name.removesuffix(".__init__"), ast.parse(path.read_text("utf-8"))) for name, path in files.items()]


def imported(tree: ast.AST, everywhere: bool = True, for_types: bool = False) -> Iterator[str]:
    """What a module imports, below the package; everywhere: within functions, too; for_types: what types need, too."""
    nodes = list(getattr(tree, "body", []))
    while nodes:
        node = nodes.pop()
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes += [one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.stmt, ast.ExceptHandler))]


def ours(name: str) -> str:
    return name.removeprefix("spark_streams.")


def test_the_top_level_has_its_seven_names() -> None:
    for name in ("pyproject.toml", "README.md", "spark_streams", "jobs", "tests", "conf", "scripts"):
        assert (ROOT.parent / name).exists(), name


def imports_of_parts(within: str = "") -> Iterator[tuple[str, str, str]]:
    """Each import of a module of ours: the importing module, its part and the imported module, below `within`."""
    known = {name for name, _ in modules()}
    for name, tree in modules():
        for what in imported(tree):
            if what.startswith("spark_streams.") and name.startswith(within):
                other = ours(what) if ours(what) in known else ours(what).rpartition(".")[0] or "__init__"
                yield name, name.removeprefix(within).split(".")[0], other


def test_each_house_imports_what_its_table_allows() -> None:
    wrong = set()
    for name, house, other in imports_of_parts():
        target = other.split(".")[0]
        if house in HOUSES and target != house and target not in HOUSES[house].below:
            if house == "jobs" and other == "__init__":
                continue  # its public names: what spark-submit is given
            if other not in HOUSES[house].doors.get(target, ()):
                wrong.add(f"{name} imports {other}")
    assert not wrong


def test_the_top_has_doors_of_a_few_lines() -> None:
    """Code is in the houses. `__init__` has the docstrings of the public names."""
    lines = {path.stem: len(path.read_text("utf-8").splitlines()) for path in ROOT.glob("*.py")}
    assert sorted(lines) == sorted(DOORS)
    assert {name for name, count in lines.items() if count > 60} == {"__init__"}
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} - {"__pycache__"} == set(HOUSES)


@pytest.mark.parametrize("house", HOUSES)
def test_a_house_stays_below_its_ceiling(house: str) -> None:
    """Who raises a ceiling says in the same commit what it is given for."""
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / house).rglob("*.py"))
    assert lines <= HOUSES[house].ceiling


def test_no_part_of_the_connector_imports_what_stands_above_it() -> None:
    wrong = set()
    for name, part, other in imports_of_parts("connector."):
        if other.startswith("connector."):
            target = other.split(".")[1]
            if target != part and target not in CONNECTOR[part]:
                wrong.add(f"{name} imports {other}")
    assert not wrong


def test_no_folder_has_many_modules() -> None:
    counts = Counter(path.parent for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert not {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > MOST_MODULES}


def test_tools_import_no_tests() -> None:
    wrong = [
        f"{path.name} imports {name}"
        for path in sorted((ROOT.parent / "tools").rglob("*.py"))
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if name.split(".")[0] == "tests"
    ]
    assert not wrong


def test_no_circle_of_folders() -> None:
    """Within each folder: its modules and subfolders import each other in one direction only."""
    names = [name for name, _ in modules()]
    imports = {
        (name, target)
        for name, tree in modules()
        for what in imported(tree)
        if what.startswith("spark_streams.")
        for target in (ours(what), ours(what).rpartition(".")[0])
        if target in names
    }
    for folder in {".".join(name.split(".")[:depth]) for name in names for depth in range(name.count(".") + 1)}:
        inside = f"{folder}." if folder else ""
        pairs = [
            (name.removeprefix(inside).split(".")[0], target.removeprefix(inside).split(".")[0])
            for name, target in imports
            if name.startswith(inside) and target.startswith(inside)
        ]
        graph: dict[str, set[str]] = {}
        for room, other in pairs:
            if room not in (other, "__init__"):
                graph.setdefault(room, set()).add(other)
        while free := [room for room, others in graph.items() if not others & graph.keys()]:
            for room in free:  # it imports nothing that is left: it is in no circle
                del graph[room]
        assert not graph, f"in {folder or 'spark_streams'}: {graph}"


def test_within_the_source_imports_run_downwards() -> None:
    floor = {part: at for at, parts in enumerate(SOURCE) for part in parts}
    wrong = set()
    for name, tree in modules():
        if not name.startswith("connector.source."):
            continue
        part = name.split(".")[2]
        for what in imported(tree):
            if ours(what).startswith("connector.source."):
                other = ours(what).split(".")[2]
                if floor[other] > floor[part]:
                    wrong.add(f"{name} imports source.{other}")
    assert not wrong


def test_connections_are_made_in_one_place() -> None:
    """By `connect`, which knows of every kind of address, and by whom it asks; and one that asks a full server."""
    makers = {
        name
        for name, tree in modules()
        if not name.startswith("engine")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Connection"
    }
    assert makers == {
        "connector.wire.connect",
        "connector.wire.connection",
        "connector.wire.sentinel",
        "connector.wire.topology",
    }


def test_what_a_command_of_rstream_imports_of_the_jobs_before_it_runs_is_next_to_nothing() -> None:
    """`rstream --help` is there at once, and where there is no Spark."""
    found = {
        ours(what)
        for name, tree in modules()
        if name.startswith("operations.commands")
        for what in imported(tree, False)
    }
    assert {what.rpartition(".")[0] for what in found if what.startswith("jobs")} == {"jobs.arguments"}


def test_the_programs_of_the_package_are_those_of_jobs() -> None:
    """`rstream run etl` runs the text that spark-submit jobs/etl.py runs. In a clone the folder is a link."""
    texts = [{path.name: path.read_text() for path in folder.glob("*.py")} for folder in (JOBS, ROOT / "jobs/programs")]
    assert texts[0] == texts[1]
    assert {f"{job}.py" for job in NAMES} | {"__init__.py"} == set(texts[0])
    assert all(20 <= len(text.splitlines()) <= 40 for name, text in texts[0].items() if name != "__init__.py")


@pytest.mark.parametrize("path", sorted(JOBS.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_a_job_stands_on_public_names_of_the_package_alone(path: Path) -> None:
    """And on no other job: the package and this one file are all that spark-submit is given."""
    wrong = []
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        first = name.split(".")[0]
        private = first == "spark_streams" and any(part.startswith("_") for part in name.split("."))
        if private or (JOBS / f"{first}.py").exists():
            wrong.append(name)
    assert not wrong
    assert not path.stem.startswith("_")


def test_no_function_of_the_source_has_many_parameters() -> None:
    """At most seven, a constructor at most six. What belongs together is a value (a frozen dataclass)."""
    wrong = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if not name.startswith("connector.source.") or not isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                continue
            given = node.args
            count = sum(one.arg not in ("self", "cls") for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))
            if count > (6 if node.name == "__init__" else 7):
                wrong.append(f"{name}.{node.name}: {count}")
    assert not wrong


def circles(everywhere: bool, for_types: bool) -> set[str]:
    """The modules in a circle of imports, and those that lead into one."""
    known = dict(modules())
    graph = {
        name: {
            target
            for what in imported(tree, everywhere, for_types)
            if what.startswith("spark_streams.")
            for target in (ours(what), ours(what).rpartition(".")[0])
            if target in known and target != name
        }
        for name, tree in known.items()
    }
    while True:  # whoever imports nothing that is left is in no circle
        free = {name for name, targets in graph.items() if not targets & graph.keys()}
        if not free:
            return set(graph)
        graph = {name: targets for name, targets in graph.items() if name not in free}


def test_no_circle_of_modules() -> None:
    assert not circles(everywhere=False, for_types=False)


def test_no_circle_in_the_engine_whatever_an_import_is_for() -> None:
    """Neither one that an import within a function puts off, nor one that only types would close."""
    assert not {name for name in circles(everywhere=True, for_types=True) if name.startswith("engine")}


@pytest.mark.parametrize("apart", ["pyspark", "pyarrow", "numpy", "redis"])
@pytest.mark.in_turn
def test_the_engine_stands_apart_from(apart: str) -> None:
    wrong = [name for name, tree in modules() if name.startswith("engine") and any(
        what.split(".")[0] == apart for what in imported(tree)
    )]  # fmt: skip
    assert not wrong


def test_what_is_public_is_there() -> None:
    assert sorted(spark_streams.__all__) == [
        "__version__",
        "debezium",
        "decode",
        "encode",
        "is_later",
        "register",
        "route_dead_letters",
        "run",
        "transaction",
        "watch",
    ]
    assert all(getattr(spark_streams, name) is not None for name in spark_streams.__all__)


# What these read decides about entries. An error is no answer there (connector/wire/connection.py).
NO_ERROR_IS_AN_ANSWER = (
    *(f"connector/{folder}" for folder in ("source", "sink", "deadletter", "retention", "shards")),
    *("operations/groups", "operations/transfer"),
)


@pytest.mark.parametrize("folder", NO_ERROR_IS_AN_ANSWER)
def test_what_decides_about_entries_gets_no_error_that_it_has_not_named(folder: str) -> None:
    """Commands.pipeline returns every error as a value, so one could be read as "none"."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "pipeline"
    ]
    assert calls == []
