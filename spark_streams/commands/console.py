"""`rstream console`: streams, groups, dead letters and queries in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import (
    address_of,
    login_environment,
    max_streams_option,
    milliseconds,
    port_option,
    say,
    url_option,
)
from spark_streams.errors import ConfigError

if TYPE_CHECKING:
    from spark_streams.console.access import Users

PORT = 9406


@click.command(short_help="Show streams, groups and dead letters in a browser.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@port_option(PORT)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. An address that other machines reach needs --users.",
)
@click.option("--write", is_flag=True, help="Allow changes. Without --write the console only shows them.")
@click.option(
    "--users",
    "users_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Require a login. FILE has a line NAME:PASSWORD for each user.",
)
@click.option(
    "--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="Name by which browsers call it; repeatable."
)
@click.option("--tls-certificate", type=click.Path(dir_okay=False), help="Serve HTTPS with this certificate (PEM).")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Private key of the certificate (PEM).")
@click.option(
    "--log", "logs", metavar="FILE", multiple=True, help="Log of spark_streams.watch, for the page Queries; repeatable."
)
@click.option("--audit", metavar="FILE", help="Append a line for each change to FILE.  [default: standard error]")
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="2s",
    show_default=True,
    callback=milliseconds,
    help="Interval between two snapshots of the server while a browser looks.",
)
@max_streams_option
@url_option
def console(
    names: tuple[str, ...],
    port: int,
    host: str,
    write: bool,
    users_file: str | None,
    allowed_hosts: tuple[str, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    logs: tuple[str, ...],
    audit: str | None,
    interval_ms: int,
    max_streams: int,
    url: str,
) -> None:
    """Serve a web console: lag and throughput of all groups, entries of streams, pending entries, dead letters, and the
    findings of rstream doctor.

    STREAM is a name, or a pattern with * ? []; default: all streams. By default the console answers only to browsers on
    this machine, and changes nothing. With --write it sets positions, hands over and acknowledges entries, corrects
    dead letters and sends them back, after a dry run. Each page shows the rstream command that does the same.

    Needs the extra console: pip install 'spark-streams[console]'. Ctrl-C and SIGTERM end the console with exit code 0.

    \b
    Examples:
      rstream console
      rstream console --write --log /var/log/billing.jsonl
      rstream console --host 0.0.0.0 --allowed-host ops.internal --users users.txt
    """
    from spark_streams.console.access import is_loopback
    from spark_streams.monitor.watch.log_lines import File

    if users_file is None and not is_loopback(host):
        raise click.UsageError(f"--host {host} is reached from other machines, so it needs --users FILE")
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together; set both")
    try:
        from spark_streams.console.app import create_app
        from spark_streams.console.server import serve, site_of
    except ImportError as error:
        raise ConfigError(
            f"rstream console needs the extra console ({error.name} is missing): pip install 'spark-streams[console]'"
        ) from None
    address = address_of(url)
    try:
        audit_log = File(None if audit is None else Path(audit))
    except OSError as error:
        raise ConfigError(f"the audit log {audit} cannot be written: {error.strerror}") from error
    site = site_of(
        address,
        {**os.environ, **login_environment(url)},
        audit_log,
        lambda line: say(line, err=True),
        streams=names,
        max_streams=max_streams,
        interval=interval_ms / 1000,
        users=_users(users_file),
        is_writable=write,
        is_tls=tls_certificate is not None,
        logs=tuple(Path(log) for log in logs),
        url="" if url == "embedded:" else str(address),
    )
    app = create_app(site, {host.strip("[]"), "localhost", "127.0.0.1", "::1", *allowed_hosts})
    serve(app, host, port, tls_certificate, tls_key, lambda where: say(f"console of {address} at {where}", err=True))


def _users(path: str | None) -> Users:
    from spark_streams.console.access import Users

    if path is None:
        return Users()
    try:
        with open(path, encoding="utf-8") as file:
            return Users.parse(file, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the users cannot be read from {path}: {error}") from error
