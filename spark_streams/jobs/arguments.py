"""The jobs there are, and the options that all of them take. Imports nothing but click: `rstream --help` shows them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

JOBS = ("load", "etl", "aggregate", "archive", "reprocess_dead_letters")
MONITORING = {"alerts": "alerts.yml", "grafana": "grafana.json"}  # what else `rstream init` writes


class Given(TypedDict):
    """What a command is given for these options."""

    config: str | None
    settings: tuple[str, ...]
    check: bool
    summary: str | None
    traceback: bool


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
    return click.argument("job", callback=_one_of(JOBS))(command)


def sample_argument(command: F) -> F:
    """NAME: a job's, or what else there is a sample of."""
    return click.argument("name", callback=_one_of((*JOBS, *MONITORING)))(command)


def _one_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], str]:
    def known(ctx: click.Context, param: click.Parameter, value: str) -> str:
        name = value.replace("-", "_")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise click.BadParameter(f"no job is called {value!r}; {hint}", ctx, param)
        return name

    return known
