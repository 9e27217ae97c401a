"""Text of others on its way to a terminal or a log: nothing in it is obeyed, and JSON keeps its value."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_streams
from spark_streams.base.printable import json_text, printable, printable_lines
from spark_streams.connector.errors import StreamStateError

ROOT = Path(spark_streams.__file__).parent
# Commands print by `say` or `print_json` (commands/shared.py). These call click.echo themselves:
ECHOES = {
    "shared.py": "is that way",
    "print_entry.py": "styles what is printable",
    "monitor.py": "a page whose lines end as they are",
    "dead.py": "empty lines",
    "show_entries.py": "empty lines",
    "help.py": "pages of the package",
    "jobs.py": "what the user typed",
    "engine.py": "this machine's address",
    "exit_codes.py": "the system's word on a standard stream",
}
WRITES = ("print", "sys.stderr.write", "sys.stdout.write", "tracebacks.print_exc", "traceback.print_exc")
PRINTS = {
    "connector/running/error_output.py": "is that way",
    "__main__.py": "this installation",
    "engine/__main__.py": "this machine's files and arguments",
    "engine/launch/commandline.py": "what the user typed",
    "engine/persistence/aof_rewrite.py": "an error of this program, in the engine's log",
}


@given(st.text(), st.text())
def test_what_is_printed_is_printable_and_what_was_printable_stays(text: str, plain: str) -> None:
    assert printable(text).isprintable()
    assert printable_lines(text).replace("\n", "").isprintable()
    plain = "".join(c for c in plain if c.isprintable())
    assert printable(plain) == plain


@pytest.mark.in_turn
@given(
    st.recursive(st.text() | st.integers() | st.none(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))
)
def test_json_of_any_value_is_printable_and_means_the_same(value: object) -> None:
    assert json.loads(json_text(value)) == value
    assert json_text(value).isprintable()
    assert json_text(value, indent=2).replace("\n", "").isprintable()


def test_escapes_say_which_character_it_was() -> None:
    text = "\x1b[2J\x7f\x9b\u202e\n\U000e0001é"
    assert printable(text) == r"\x1b[2J\x7f\x9b\u202e\n\U000e0001é"
    assert json_text(text) == r'"\u001b[2J\u007f\u009b\u202e\n\udb40\udc01é"'


def test_an_error_message_is_printable_whatever_it_names() -> None:
    """A stream's name stands in commands that a message recommends, too."""
    error = StreamStateError("stream a\u202eb\x9b31m is gone; rstream show a\u202eb")
    assert error.message == r"stream a\u202eb\x9b31m is gone; rstream show a\u202eb"
    assert str(error).isprintable()


def test_commands_print_through_one_module() -> None:
    echoing = set()
    for path in (ROOT / "operations" / "commands").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "echo":
                echoing.add(path.name)
    assert echoing == set(ECHOES), "print by say() of operations/commands/shared.py"


def test_others_print_through_one_function() -> None:
    """What is below commands, and jobs: to standard output and to standard error."""
    printing = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES:
                printing.add(path.relative_to(ROOT).as_posix())
    assert printing == set(PRINTS), "print by print_error() of connector/running/error_output.py"
