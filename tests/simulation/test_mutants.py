"""The product with one decisive line changed: the table of mutants fits the product, and plans find them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.day_seed import first_seed
from tools.simulation.mutants.mutant import ROOT, Mutant, functions_in
from tools.simulation.mutants.table import FILE, MUTANTS, NAMED, printed

TURNS = 28


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_product(mutant: Mutant) -> None:
    """Its text occurs once, and what stands in its place is Python."""
    changed = mutant.source()
    assert mutant.text != mutant.instead
    compile(changed, mutant.file, "exec", dont_inherit=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_function_of_the_running_product(mutant: Mutant) -> None:
    """Outside of functions, and in one of several with the same name, the change would have no effect."""
    whole = compile(mutant.whole(), mutant.file, "exec", dont_inherit=True)
    names = [code.co_qualname for code in functions_in(whole)]
    line = mutant.changed_line()
    holders = [code.co_qualname for code in functions_in(whole) if line in {at for _, _, at in code.co_lines()}]
    assert holders
    assert names.count(holders[0].partition(".<locals>")[0]) == 1


def test_each_mutant_has_a_name_and_says_what_it_breaks() -> None:
    assert len(NAMED) == len(MUTANTS) >= 40
    assert all(mutant.breaks.endswith(".") for mutant in MUTANTS)


def test_what_has_found_a_mutant_finds_it_again() -> None:
    """Some of them each day. Without a change each of these plays passes. In a process of its own: it forks, and other
    tests may have threads."""
    turn = sorted(MUTANTS, key=lambda mutant: mutant.name)[first_seed() % TURNS :: TURNS]
    chosen = [mutant.name for mutant in turn if mutant.found]
    command = [sys.executable, "-m", "tools.simulation", "--mutants", *chosen, "--runs", "0"]
    hunt = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (hunt.returncode, hunt.stderr) == (0, "")
    assert "fails without a mutant" not in hunt.stdout
    assert f"{len(chosen)} mutants · {len(chosen)} found" in hunt.stdout


def test_each_test_that_finds_a_mutant_is_there() -> None:
    """The hunt of the day runs only some of them."""
    named = {mutant.found.play for mutant in MUTANTS if mutant.found and mutant.found.play.startswith("tests/")}
    tests = [node.partition("[")[0].partition("::")[::2] for node in named]
    assert len(tests) > 30
    missing = [(file, name) for file, name in tests if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert not missing


def test_a_test_that_passes_with_a_mutant_does_not_find_it() -> None:
    """One that is not there is an error, and finds nothing."""
    command = "from tools.simulation.mutants import plays; from tools.simulation.mutants.table import NAMED\n"
    command += "file = 'tests/jobs/output/test_ownership.py::'\n"
    for name in ("of_two_queries_that_start_together_the_one_that_is_not_recorded_writes_nothing", "no_such_test"):
        others = ["the_owner_is_the_query_and_its_output", name]
        command += f"print(plays._finder_among(NAMED['claimed-once'], [file + 'test_' + one for one in {others}]))\n"
    ran = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("Note(play='tests/jobs/output/test_ownership.py::test_of_two_queries_")
    assert "no_such_test cannot be run" in ran.stderr


def test_a_table_that_is_written_down_is_the_same() -> None:
    assert printed(MUTANTS) == FILE.read_text(encoding="utf-8")


def test_what_finds_no_mutant_is_no_play_that_fails_without_it() -> None:
    """A plan without the sink does nothing of its ledger. A play that fails in any case is named, and finds nothing."""
    command = "from tools.simulation.mutants import plays; from tools.simulation.mutants.table import NAMED\n"
    command += "{}\nprint(plays._finder_among(NAMED['done-is-not-written'], ['told/sought back']))"
    for patch, said in (("", "None\n"), ("plays.missing = lambda *_: 'wrong'", "fails without a mutant")):
        assert said in subprocess.check_output([sys.executable, "-c", command.format(patch)], cwd=ROOT, text=True)


def test_a_mutant_changes_functions_that_the_engine_has_frozen() -> None:
    """The engine's core calls gc.freeze() when it begins. A hunt begins one before it forks."""
    lines = [
        "import gc",
        "from spark_streams.connector.source.group import compare",
        "from tools.simulation.mutants.table import NAMED",
        "gc.freeze()",
        "before = compare._read_before.__code__",
        "NAMED['first-account-counts-from-the-end'].install()",
        "print(compare._read_before.__code__ is before)",
    ]
    assert subprocess.check_output([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, text=True) == "False\n"
