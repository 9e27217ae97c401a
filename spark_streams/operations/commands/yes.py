"""The convention of all commands that change something: without `--yes` a command prints what it would change.

A command whose purpose is to write new data (`rstream add`) or a file of the user (`rstream export`) acts at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def yes_option(command: F) -> F:
    """Add `--yes`, without which a command makes no change."""
    text = "Make the change. Without --yes the command only prints what it would change."
    return click.option("--yes", is_flag=True, help=text)(command)


def change_line(yes: bool, summary: str) -> str:
    """Return the last line of a command that changes something. summary: it begins with a past participle."""
    return summary if yes else f"dry run, nothing was changed; with --yes: {summary}"
