"""`rstream console`: streams, groups, dead letters and queries in a browser."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from spark_streams.base.extras import command_for
from spark_streams.connector.errors import UnsupportedError
from spark_streams.operations.commands import shared
from spark_streams.operations.commands.print_entry import decode_options

if TYPE_CHECKING:
    from spark_streams.connector.schemas.decode_process import FieldDecoders

PORT = 9406


def _names_of(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> frozenset[str] | None:
    names = [name for text in texts for name in text.split(",")]
    if "" in names:
        raise click.BadParameter("a name is empty; write --show order,amount", context, option)
    return frozenset(names) if texts else None


def _header(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch("[A-Za-z0-9][A-Za-z0-9-]*", value):
        raise click.BadParameter(f"{value!r} is not the name of a header; write X-Forwarded-User", context, option)
    return value


def _group(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, str] | None:
    if value is None:
        return None
    header, _, group = value.partition("=")
    if not group.strip() or "," in group:
        raise click.BadParameter(f"{value!r} is not HEADER=GROUP; write X-Forwarded-Groups=operators", context, option)
    return _header(context, option, header) or "", group.strip()


@click.command(short_help="Show streams, groups and dead letters in a browser.")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@shared.port_option(PORT)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen on: a loopback address."
)
@click.option(
    "--socket",
    "socket_path",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Listen on this unix socket in place of a port. Only its owner can open it.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Allow changes: to the browser that opens the printed link, or to users of --behind-proxy.",
)
@click.option(
    "--behind-proxy",
    "user_header",
    metavar="HEADER",
    callback=_header,
    help="A proxy on this machine logs users in, and names them in this header. Other requests are refused.",
)
@click.option(
    "--write-group",
    metavar="HEADER=GROUP",
    callback=_group,
    help="Only users of this group make changes. The proxy names a user's groups in HEADER, separated by commas.",
)
@click.option(
    "--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="Name by which browsers call it; repeatable."
)
@click.option(
    "--log", "logs", metavar="FILE", multiple=True, help="Log of spark_streams.watch, for the page Queries; repeatable."
)
@click.option("--audit", metavar="FILE", help="Append two lines for each change to FILE.  [default: standard error]")
@click.option(
    "--show",
    "shown",
    metavar="FIELD,...",
    multiple=True,
    callback=_names_of,
    help="Show the values of these fields only; of all others, and of reasons and errors, their length. Repeatable.  "
    "[default: show all]",
)
@click.option(
    "--every",
    "interval_ms",
    metavar="TIME",
    default="2s",
    show_default=True,
    callback=shared.milliseconds,
    help="Interval between two snapshots of the server while a browser looks.",
)
@shared.max_streams_option
@decode_options(keeps_going=True)
@shared.url_option
def console(
    names: tuple[str, ...],
    port: int,
    host: str,
    socket_path: str | None,
    write: bool,
    user_header: str | None,
    write_group: tuple[str, str] | None,
    allowed_hosts: tuple[str, ...],
    logs: tuple[str, ...],
    audit: str | None,
    shown: frozenset[str] | None,
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
      rstream console --write --log /var/log/billing.jsonl
      rstream console --decode payload --registry https://registry.internal:8081
      rstream console --write --behind-proxy X-Forwarded-User --allowed-host ops.internal
    """
    if write_group and not user_header:
        raise click.UsageError("--write-group does nothing without --behind-proxy HEADER; set both")
    if socket_path and _is_set("port", "host"):
        raise click.UsageError("--socket is in the place of --host and --port; leave them out")
    try:
        from spark_streams.operations.console.allow_list import AllowList
        from spark_streams.operations.console.app import create_app
        from spark_streams.operations.console.changes import Audit, Changes, open_audit
        from spark_streams.operations.console.live import SNAPSHOT_SECONDS, Live
        from spark_streams.operations.console.site import Site
        from spark_streams.operations.console.visitors import Access, TrustedProxy, is_loopback
        from spark_streams.operations.console.web_server import listen, listen_at, serve
        from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter
    except ImportError as error:
        raise UnsupportedError(
            f"rstream console needs the extra console ({error.name} is missing): {command_for('console')}"
        ) from None
    if not is_loopback(host):
        raise click.UsageError(
            f"--host {host} is reached from other machines, and the console has no users of its own. Let a proxy log "
            "them in: leave out --host, and set --behind-proxy HEADER"
        )
    address = shared.address_of(url)
    access = Access(write, None if user_header is None else TrustedProxy(user_header, *(write_group or ())))
    allowed, tell = AllowList(shown), partial(shared.say, err=True)
    # A snapshot is never reused: Live asks for the next one when its time has come.
    snapshots = SnapshotCache(address, StreamFilter(names, max_streams), 0, SNAPSHOT_SECONDS, tell)
    live = Live(snapshots, interval_ms / 1000)
    environment = {**os.environ, **shared.login_environment(url), "RSTREAM_PROGRESS": "json"}
    log = Audit(tell if audit is None else open_audit(Path(audit)), allowed)
    changes = Changes(environment, log, live.refresh)
    shown_url = "" if url == "embedded:" else str(address)
    site = Site(address, live, changes, access, tuple(map(Path, logs)), shown_url, decoders, allowed)
    app = create_app(site, {host.strip("[]"), "localhost", "127.0.0.1", "::1", *allowed_hosts})
    listener = listen(host, port) if socket_path is None else listen_at(socket_path)
    name = f"[{host.strip('[]')}]" if ":" in host else host
    where = f"http://{name}:{listener.getsockname()[1]}/" if socket_path is None else "http://localhost/"
    if write and access.proxy is None:
        where += f"open?token={access.keys.link}"
    at = f"{where} by the unix socket {socket_path}" if socket_path else where
    serve(app, listener, lambda: shared.say(f"console of {address} at {at}", err=True))


def _is_set(*options: str) -> bool:
    """Whether one of these options is on the command line."""
    sources = map(click.get_current_context().get_parameter_source, options)
    return any(source is ParameterSource.COMMANDLINE for source in sources)
