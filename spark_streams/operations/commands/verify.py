"""`rstream verify`: try the guarantees on a server and a Spark."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spark_streams.base.extras import lacks
from spark_streams.connector.errors import UnsupportedError
from spark_streams.operations.commands import exit_codes, shared
from spark_streams.operations.commands.exit_codes import FAILED, STOPPED, found

if TYPE_CHECKING:
    from spark_streams.connector.wire.address import Address

# Options of source and sink, by the variable that only commands read.
_OPTIONS = {"RSTREAM_CREDENTIAL_PROVIDER": "credentialProvider", "RSTREAM_REPLY_TIMEOUT": "replyTimeout"}


@click.command(short_help="Try the guarantees on your own server and Spark.")
@click.option("--minutes", type=click.FloatRange(0.05), default=3.0, show_default=True, help="Minutes of faults.")
@click.option("--engine", is_flag=True, help="Try a bundled engine instead of --url.")
@click.option(
    "--spark-submit", metavar="COMMAND", default="", help="Start drivers by it.  [default: local Spark of this Python]"
)
@click.option("--allow-failover", is_flag=True, help="Also ask Sentinel or the cluster for failovers.")
@click.option("--seed", type=click.IntRange(0), help="Make the choices of an earlier run.")
@click.option("--keep", is_flag=True, help="Do not delete the keys.")
@click.option("--html", metavar="FILE", type=click.File("w", "utf-8", lazy=False), help="Also write an HTML page.")
@shared.url_option
@shared.json_option
def verify(
    minutes: float,
    engine: bool,
    spark_submit: str,
    allow_failover: bool,
    seed: int | None,
    keep: bool,
    html: IO[str] | None,
    url: str,
    as_json: bool,
) -> None:
    """Try the guarantees on your server and Spark. A query writes rows of the run's own streams to another one, exactly
    once, with dead letters. Its driver is killed at random, its connections are broken. Then each entry is followed
    to its row:

    \b
      lost 0 · twice 0 · out of order 0 · acknowledged early 0 · left pending 0

    Entries that the server confirmed, and those whose reply was lost, must add up to rows and dead letters.

    Exit codes: 0 the guarantees held; 1 they did not; 4 nothing is proved; 130 stopped. All
    keys have the run's random name and are deleted at the end, also after Ctrl-C or SIGKILL. Of other keys only
    rstream:runs changes. Each second the run adds some 250 entries.

    \b
    Examples:
      rstream verify --engine --minutes 1
      rstream verify --url redis+cluster://a:6379,b:6379 --allow-failover --html verify.html
      rstream verify --url redis://h:6379 --spark-submit 'spark-submit --master yarn'
    """
    from spark_streams.jobs.start import missing_package

    given = click.get_current_context().get_parameter_source("url")
    if engine == (given is ParameterSource.COMMANDLINE) and (engine or given is ParameterSource.DEFAULT):
        raise click.UsageError("name the server with --url, or try the bundled engine with --engine: one of them")
    if re.search(r"deploy-mode[= ]+cluster", spark_submit):
        raise click.UsageError("verify kills the driver, so it must be on this machine; remove --deploy-mode cluster")
    _check_command(spark_submit)
    if not spark_submit and (package := missing_package()):
        raise UnsupportedError(lacks("rstream verify", package))
    from spark_streams.operations.verify import verify_run
    from spark_streams.operations.verify.result import HELD, UNPROVED, page
    from spark_streams.operations.verify.running_query import RunPlan

    began = time.monotonic()

    def tell(line: str) -> None:
        shared.say(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    _handle_signals(signal.default_int_handler)
    with contextlib.ExitStack() as closing:
        address, login = _server(engine, url, closing)
        chosen = secrets.randbelow(1_000_000) if seed is None else seed
        options = {option: login[name] for name, option in _OPTIONS.items() if name in login}
        name = f"rstream-verify-{secrets.token_hex(8)}"
        one_slot = not address.is_cluster
        plan = RunPlan(name, chosen, 60 * minutes, options, spark_submit, allow_failover, keep, engine, one_slot)
        tell(f"{plan.prefix} on {address}, seed {chosen}")
        try:
            result = verify_run.verify(plan, address, login, tell, partial(_handle_signals, _leave))
        except (KeyboardInterrupt, verify_run.HungQueryError) as end:
            is_hung = isinstance(end, verify_run.HungQueryError)
            found(exit_codes.UNPROVED if is_hung else STOPPED)
            shared.say(f"nothing is proved: {end}" if is_hung else "stopped, without a verdict", err=True)
            return
    found({HELD: 0, UNPROVED: exit_codes.UNPROVED}.get(result.verdict, FAILED))
    if html is not None:
        html.write(page(result))
    shared.print_json(result.for_json()) if as_json else shared.say(str(result))


def _check_command(spark_submit: str) -> None:
    """Raise UsageError if the command that starts drivers cannot be run."""
    try:
        words = shlex.split(spark_submit)
    except ValueError as error:
        raise click.UsageError(f"--spark-submit {spark_submit!r}: {error}") from None
    if words and shutil.which(words[0]) is None:
        raise click.UsageError(f"--spark-submit: there is no command {words[0]!r}; name it with its folder")


def _server(engine: bool, url: str, closing: contextlib.ExitStack) -> tuple[Address, dict[str, str]]:
    """Return the server, and the variables by which a driver logs in to it."""
    from spark_streams.connector.wire.address import IDENTITY_VARIABLES, Address

    no_login = dict.fromkeys(IDENTITY_VARIABLES, "")
    if not engine:
        return shared.address_of(url), no_login | shared.login_environment(url)
    from spark_streams.engine import LocalEngine

    return Address.parse(closing.enter_context(LocalEngine()).url), no_login


def _handle_signals(handler: Any) -> None:
    """Treat SIGTERM as Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _leave(*_: object) -> None:
    os.write(2, b"stopped while it cleans: another process does that, within two minutes\n")
    os._exit(STOPPED)
