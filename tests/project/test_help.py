"""`rstream help`: each message that names a page can be followed offline, in a clone and in the installed package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import spark_streams
from spark_streams.cli import main
from spark_streams.connector.options.option import documented
from spark_streams.connector.options.table import BATCH_SOURCE, SINK, SOURCE
from spark_streams.operations.commands.help import page, topics

ROOT = Path(spark_streams.__file__).parent
TOPIC = re.compile(r"rstream help ([\w/-]+)")


def texts(file: Path) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def helps(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    for option in command.params:
        yield (option.help or "") if isinstance(option, click.Option) else ""
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from helps(each)


def messages() -> list[str]:
    """Return all that a user may read: texts of modules, help of commands, templates and settings files."""
    modules = [text for file in ROOT.rglob("*.py") for text in texts(file)]
    others = [
        file.read_text(encoding="utf-8")
        for file in ROOT.rglob("*")
        if file.suffix in (".html", ".js", ".properties", ".toml") and file.is_file()
    ]
    return [*modules, *others, *helps(main)]


def test_no_message_names_a_file_of_the_docs() -> None:
    """An installed package has no folder `docs`, and nothing was published."""
    said = [text for text in messages() if re.search(r"\bdocs/|github\.io", text)]
    assert not said


def test_each_topic_that_a_message_names_exists() -> None:
    named = {name for text in messages() for name in TOPIC.findall(text)}
    assert named >= {"access", "migrate", "order-by-key", "change-a-group"}
    assert named <= {*topics(), "TOPIC"}


@pytest.mark.parametrize("topic", topics())
def test_a_topic_is_the_page(topic: str) -> None:
    ran = CliRunner().invoke(main, ["help", topic])
    assert (ran.exit_code, ran.output.startswith("# ")) == (0, True)
    part, file = topics()[topic]
    assert ran.output.strip()[-200:] in (ROOT.parent / "docs" / part / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("option", sorted({one.name for one in documented((*SOURCE, *BATCH_SOURCE, *SINK))}))
def test_an_option_is_shown_alone(option: str) -> None:
    """Errors that name an option name this command."""
    ran = CliRunner().invoke(main, ["help", f"options#{option}"])
    assert ran.exit_code == 0
    assert re.match(rf"{option}\n(  for: \w+\n)?  type: .+\n  default: .+\n  meaning: .+\n", ran.output)
    assert "<a id" not in ran.output


def test_an_option_of_source_and_sink_is_shown_twice() -> None:
    assert CliRunner().invoke(main, ["help", "options#SHARDS"]).output.count("\nshards\n  type: ") == 1
    assert CliRunner().invoke(main, ["help", "options#shards"]).output.count("shards\n  for: stream\n") == 1


def test_no_page_shows_its_anchors() -> None:
    assert not [topic for topic in topics() if "<a id" in page(topic)]


def test_all_topics_are_listed_with_their_titles() -> None:
    lines = CliRunner().invoke(main, ["help"]).output.splitlines()
    assert len(lines) == len(topics())
    assert any(re.fullmatch(r"trim +Trimming streams", line) for line in lines)
    assert any(line.startswith("reference/jobs ") for line in lines)


@pytest.mark.parametrize(
    ("topic", "proposal"),
    [
        ("lag", "rstream lag --help"),
        ("troubleshoting", "Did you mean rstream help troubleshooting?"),
        ("zzz", "To list all topics run rstream help"),
        ("../../setup", "To list all topics run rstream help"),
        ("options#zzz", "topic 'options' has no entry 'zzz'. To read the topic run rstream help options"),
        ("zzz#url", "To list all topics run rstream help"),
    ],
)
def test_an_unknown_topic_names_what_to_run(topic: str, proposal: str) -> None:
    ran = CliRunner().invoke(main, ["help", topic])
    assert (ran.exit_code, proposal in ran.output) == (2, True)
