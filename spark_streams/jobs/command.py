"""A job's command line: the options that all jobs take, and every error as one line with an exit code.

    spark-submit --properties-file conf/spark-defaults.conf jobs/NAME.py --config conf/NAME.toml [--set key=value …]

`--check` checks the configuration, asks the server, prints what the job would do, and starts nothing.
Exit codes: 0 done, or stopped by SIGTERM or SIGINT (running/stopping.py); 1 the job failed; 2 the arguments or the
configuration are wrong; 130 stopped at once by a second SIGINT. `--traceback` shows where an error comes from.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

import click
from rich.console import Console

from spark_streams.jobs.config import Shape, load
from spark_streams.errors import OptionError
from spark_streams.jobs.job import CheckedError, Job
from spark_streams.running.failing import one_line
from spark_streams.running.quiet import quieten_python
from spark_streams.wire.address import redacted

# As the command `rstream` has it.
SETTINGS = {"help_option_names": ["-h", "--help"]}


def main(name: str, doc: str, shape: Shape, required: Iterable[str], body: Callable[[Job], None]) -> None:
    """Run a job from the command line; leaves with the codes above.

    doc: what `--help` says of it; shape: the keys of its configuration; required: those that must be given.
    """

    @click.command(help=doc, context_settings=SETTINGS)
    @click.option("--config", metavar="FILE", help=f"The configuration, a TOML file; a sample is conf/{name}.toml.")
    @click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override one key; may be repeated.")
    @click.option("--check", is_flag=True, help="Check configuration and server, print the plan, start nothing.")
    @click.option("--summary", metavar="FILE", help="Write the closing numbers to this file as well, as JSON.")
    @click.option("--traceback", "show", is_flag=True, help="Show where an error comes from.")
    def command(config: str | None, settings: tuple[str, ...], check: bool, summary: str | None, show: bool) -> None:
        if not show:
            quieten_python()
        try:
            job = Job(name, load(config, settings, {"url": str, **shape}, required), _console(), check)
            body(job)
            job.finish(summary)
        except CheckedError:
            return
        except KeyboardInterrupt:
            _leave(130, f"{name}: stopped; what was read and not acknowledged is read again next time")
        except OptionError as error:
            _leave(2, f"{name}: {error}", show)
        except Exception as error:  # noqa: BLE001 - the one place where errors become a line
            _leave(1, f"{name}: {one_line(error)}", show)

    run(command, f"{name}.py", name)


def run(command: click.Command, program: str, name: str) -> None:
    """Run a command of click's. What is wrong with its arguments is one line that begins with `name`, exit code 2; it
    shows no password that was typed in the wrong place."""
    try:
        command.main(prog_name=program, standalone_mode=False)
    except click.UsageError as error:
        words = error.format_message().rstrip(".").split()
        said = " ".join(redacted(word) if "@" in word or "://" in word else word for word in words)
        _leave(2, f"{name}: {said}; --help shows how it is called")


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _leave(code: int, line: str, show: bool = False) -> NoReturn:
    if show:
        traceback.print_exc()
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)
