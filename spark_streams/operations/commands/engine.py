"""`rstream serve` and `rstream url`: serve the bundled engine; the server's address for other clients."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from spark_streams.operations.commands.shared import address_of, url_option

if TYPE_CHECKING:
    from spark_streams.connector.wire.address import Address


@click.command(
    short_help="Serve the bundled stream engine.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the bundled stream engine. Its options have the names of redis.conf (rstream serve --help)."""
    from spark_streams.engine.__main__ import main as engine_main

    sys.exit(engine_main(list(arguments), prog="rstream serve"))


_UNIX = "unix://"


def _of_now(address: Address) -> str:
    if address.is_cluster:
        from spark_streams.connector.admin.streams import topology_of

        return address.node(*topology_of(address).masters()[0]).resolve()
    if not address.asks_sentinels:
        return address.resolve()
    from spark_streams.connector.admin.streams import master

    return address.node(*master(address).node).resolve()


@click.command(short_help="Print the server's address for other clients.")
@click.option("--start", is_flag=True, help="Start the bundled engine if it does not run.")
@url_option
def url(start: bool, url: str) -> None:
    """Print the address to which redis-py and other clients connect.

    For embedded: it is the Unix socket of the bundled engine. With Sentinel it is the current master's. For a cluster
    it is one node's, for redis.RedisCluster.from_url and redis-cli -c. Any other URL is printed unchanged, with its
    password.

    If the bundled engine does not run, the exit code is 1. It stops ten minutes after its last client has disconnected;
    embedded:?idle=3600 sets another time in seconds.

    \b
    Examples:
      rstream url
      python -c "import redis; print(redis.Redis.from_url('$(rstream url)').keys())"
      rstream url --start --url embedded:///var/lib/streams
    """
    address = address_of(url, start)
    if start and not address.is_embedded:
        raise click.UsageError(f"--start starts only the bundled engine, and {address} is another server; leave it out")
    url_now = _of_now(address)
    click.echo(url_now)
    if sys.stdout.isatty() and url_now.startswith(_UNIX):
        click.echo(f"with redis-cli: redis-cli -s {url_now.removeprefix(_UNIX).partition('?')[0]}", err=True)
