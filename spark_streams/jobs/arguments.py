"""The jobs there are, and the options that all of them take. Imports nothing but click: `rstream --help` shows them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

JOBS = ("load", "etl", "aggregate", "archive", "reprocess_dead_letters")

_OPTIONS = (
    click.option("--config", metavar="FILE", help="The configuration, a TOML file; `rstream init JOB` writes one."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override one key; may be repeated."),
    click.option("--check", is_flag=True, help="Check configuration and server, print the plan, start nothing."),
    click.option("--summary", metavar="FILE", help="Write the closing numbers to this file as well, as JSON."),
    click.option("--traceback", is_flag=True, help="Show where an error comes from."),
)


def job_options(command: F) -> F:
    """--config, --set, --check, --summary, --traceback."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def job_argument(command: F) -> F:
    """JOB: a job's name, with - or _ between its words."""

    def known(ctx: click.Context, param: click.Parameter, value: str) -> str:
        name = value.replace("-", "_")
        if name not in JOBS:
            near = difflib.get_close_matches(name, JOBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(JOBS)}"
            raise click.BadParameter(f"no job is called {value!r}; {hint}", ctx, param)
        return name

    return click.argument("job", callback=known)(command)
