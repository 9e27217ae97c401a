"""One convention for commands that change something: a dry run without --yes."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from spark_streams.cli import main

LOOK = {
    *("streams", "show", "where", "tail", "groups list", "lag", "pending", "wait", "top", "exporter", "doctor"),
    *("dead list", "dead show", "url", "serve", "console", "help"),
}
WRITE_NEW_DATA_OR_A_FILE = {"add", "export", "dead export", "init", "run", "verify"}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def options(command: click.Command) -> set[str]:
    """Return the names of the options that the help shows."""
    return {
        name
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }


def test_every_command_that_changes_something_has_yes_and_no_other_has() -> None:
    shown = {name: options(command) for name, command in commands(main)}
    assert not [name for name, names in shown.items() if "--dry-run" in names]
    assert {name for name, names in shown.items() if "--yes" not in names} == LOOK | WRITE_NEW_DATA_OR_A_FILE


@pytest.mark.parametrize("name", [name for name, command in commands(main) if "--yes" in options(command)])
def test_dry_run_is_the_default_and_no_option(name: str) -> None:
    ran = CliRunner().invoke(main, [*name.split(), "--dry-run"])
    assert ran.exit_code == 2
    assert "No such option" in ran.output


def test_no_command_has_an_option_that_its_help_does_not_show() -> None:
    """Nothing was released, so no command speaks of an earlier one."""
    hidden = [
        (name, option.name)
        for name, command in commands(main)
        for option in command.params
        if isinstance(option, click.Option) and option.hidden
    ]
    assert not hidden
