"""`rstream console`: streams, groups, dead letters and queries in a browser."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_streams.base.extras import command_for
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.errors import ConfigError
from spark_streams.operations.commands.print_entry import decode_options
from spark_streams.operations.commands.shared import (
    address_of,
    login_environment,
    max_streams_option,
    milliseconds,
    port_option,
    say,
    url_option,
)

if TYPE_CHECKING:
    from spark_streams.connector.schemas.shown import FieldDecoders
    from spark_streams.operations.console.login.oidc import Oidc

PORT = 9406


def _names_of(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> frozenset[str]:
    names = [name for text in texts for name in text.split(",")]
    if "" in names:
        raise click.BadParameter("a name is empty; write --mask card,email", context, option)
    return frozenset(names)


@click.command(short_help="Show streams, groups and dead letters in a browser.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@port_option(PORT)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. An address that other machines reach needs a login, and TLS or --behind-proxy.",
)
@click.option("--write", is_flag=True, help="Allow changes. Without --write the console only shows them.")
@click.option(
    "--users",
    "users_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Require a login. FILE has the users, with hashes of their passwords; --add-user writes it.",
)
@click.option(
    "--add-user",
    metavar="NAME",
    help="Ask for a password, add NAME and its hash to the file of --users, and end. Without --users: print the line.",
)
@click.option(
    "--role",
    type=click.Choice(("view", "write")),
    default="write",
    show_default=True,
    help="Role of the user of --add-user: view makes no changes.",
)
@click.option(
    "--oidc",
    "oidc_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Let users log in by an OpenID Connect provider. FILE (TOML) names it, and the roles of its groups.",
)
@click.option(
    "--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="Name by which browsers call it; repeatable."
)
@click.option("--tls-certificate", type=click.Path(dir_okay=False), help="Serve HTTPS with this certificate (PEM).")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Private key of the certificate (PEM).")
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="A proxy serves HTTPS, and only the proxy reaches the console. It appends to X-Forwarded-For and keeps Host.",
)
@click.option(
    "--log", "logs", metavar="FILE", multiple=True, help="Log of spark_streams.watch, for the page Queries; repeatable."
)
@click.option(
    "--audit", metavar="FILE", help="Append a line for each login and change to FILE.  [default: standard error]"
)
@click.option(
    "--mask",
    "masked",
    metavar="FIELD,...",
    multiple=True,
    callback=_names_of,
    help="Show •••• for the values of these fields, also within JSON, to users with the role view; repeatable. "
    "Without logins: to all.",
)
@click.option("--mask-all", is_flag=True, help="Mask the fields of --mask for users with the role write, too.")
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
@decode_options(keeps_going=True)
@url_option
def console(
    names: tuple[str, ...],
    port: int,
    host: str,
    write: bool,
    users_file: str | None,
    add_user: str | None,
    role: str,
    oidc_file: str | None,
    allowed_hosts: tuple[str, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    behind_proxy: bool,
    logs: tuple[str, ...],
    audit: str | None,
    masked: frozenset[str],
    mask_all: bool,
    interval_ms: int,
    max_streams: int,
    url: str,
    decoders: FieldDecoders | None,
) -> None:
    """Serve a web console: lag and throughput of all groups, entries of streams, pending entries, dead letters, and the
    findings of rstream doctor.

    STREAM is a name, or a pattern with * ? []; default: all streams. With --write it sets positions, hands over and
    acknowledges entries, corrects dead letters and sends them back, after a dry run. Each page shows the rstream
    command that does the same. With --decode or --schema the pages of an entry and of a dead letter also show the
    decoded value of that field.

    Needs the extra console (rstream help install). Ctrl-C and SIGTERM end the console with exit code 0.

    \b
    Examples:
      rstream console
      rstream console --write --log /var/log/billing.jsonl
      rstream console --users users.txt --add-user ann
      rstream console --write --oidc oidc.toml
      rstream console --write --users users.txt --mask card,email
      rstream console --decode payload --registry https://registry.internal:8081
      rstream console --host 0.0.0.0 --allowed-host ops.internal --users users.txt --behind-proxy
    """
    from spark_streams.operations.console.access import is_loopback
    from spark_streams.operations.console.login.users import Users

    if add_user is not None:
        _add_user(add_user, users_file, role)
        return
    if users_file is None and oidc_file is None and not is_loopback(host):
        raise click.UsageError(f"--host {host} is reached from other machines, so it needs --users FILE or --oidc FILE")
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together; set both")
    if tls_certificate is None and not behind_proxy and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} is reached from other machines, and without TLS passwords and pages are readable on the "
            "network; set --tls-certificate and --tls-key, or --behind-proxy if a proxy serves HTTPS"
        )
    if mask_all and not masked:
        raise click.UsageError("--mask-all does nothing without --mask FIELD,...; add it, or leave out --mask-all")
    try:
        from spark_streams.operations.console.app import create_app
        from spark_streams.operations.console.audit import open_audit
        from spark_streams.operations.console.mask import Mask
        from spark_streams.operations.console.server import serve, site_of
    except ImportError as error:
        raise ConfigError(
            f"rstream console needs the extra console ({error.name} is missing): {command_for('console')}"
        ) from None
    address = address_of(url)
    is_https = tls_certificate is not None or behind_proxy
    users = Users() if users_file is None else Users.read(users_file)
    site = site_of(
        address,
        {**os.environ, **login_environment(url)},
        partial(say, err=True) if audit is None else open_audit(Path(audit)),
        lambda line: say(line, err=True),
        streams=names,
        max_streams=max_streams,
        interval=interval_ms / 1000,
        users=users,
        is_writable=write,
        is_https=is_https,
        has_proxy=behind_proxy,
        logs=tuple(Path(log) for log in logs),
        url="" if url == "embedded:" else str(address),
        decoders=decoders,
        mask=Mask(masked, frozenset() if decoders is None else frozenset(map(text, decoders.fields)), mask_all),
        oidc=None if oidc_file is None else _oidc_of(oidc_file, is_https),
    )
    app = create_app(site, {host.strip("[]"), "localhost", "127.0.0.1", "::1", *allowed_hosts})
    serve(app, host, port, tls_certificate, tls_key, lambda where: say(f"console of {address} at {where}", err=True))


def _oidc_of(path: str, is_https: bool) -> Oidc:
    """Return the provider of a file. Raises ConfigError."""
    try:
        from spark_streams.operations.console.login.oidc import Oidc, Provider
    except ImportError as error:
        raise ConfigError(f"--oidc needs the extra oidc ({error.name} is missing): {command_for('oidc')}") from None
    return Oidc(Provider.read(path), is_https)


def _add_user(name: str, users_file: str | None, role: str) -> None:
    """Write the user to the file, or print the line. The password is typed twice, or is the first line of input."""
    from spark_streams.operations.console.login.users import add_user, check_name, user_line

    check_name(name)
    if sys.stdin.isatty():
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty; type one, or write it to standard input")
    if users_file is None:
        click.echo(user_line(name, password, role))
        return
    add_user(Path(users_file), name, password, role)
    say(f"{users_file} has user {name}; a console that runs reads the file again when it is restarted", err=True)
