"""Names of the jobs, and the options that all of them take. Imports only click, because `rstream --help` shows them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

JOBS = ("load", "etl", "aggregate", "archive", "reprocess_dead_letters")
MONITORING = {"alerts": "alerts.yml", "grafana": "grafana.json"}  # further samples of `rstream init`
PROGRAMS = {"query": "query.py"}  # programs of it


class JobArguments(TypedDict):
    """Values of these options on a command line."""

    config: str | None
    settings: tuple[str, ...]
    check: bool
    summary: str | None
    traceback: bool
    take_over: bool


_OPTIONS = (
    click.option("--config", metavar="FILE", help="Configuration file (TOML). `rstream init JOB` writes one."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override one key; may be repeated."),
    click.option("--check", is_flag=True, help="Check configuration and server, print the plan, start nothing."),
    click.option("--summary", metavar="FILE", help="Also write the summary to this file, as JSON."),
    click.option("--traceback", is_flag=True, help="Print the traceback of an error."),
    click.option("--take-over", is_flag=True, help="Continue tables of another job, which is stopped."),
)


def job_options(command: F) -> F:
    """Add --config, --set, --check, --summary, --traceback and --take-over to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _one_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], str]:
    def canonical_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
        name = value.replace("-", "_")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(names)}"
            raise click.BadParameter(f"no job is called {value!r}; {hint}", ctx, param)
        return name

    return canonical_name


# Add the argument JOB, a job's name, with - or _ between its words; and NAME, a job, or another sample that
# `rstream init` writes.
job_argument = click.argument("job", callback=_one_of(JOBS))
sample_argument = click.argument("name", callback=_one_of((*JOBS, *PROGRAMS, *MONITORING)))
