"""`rstream url`: where other clients find the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from spark_streams.commands.shared import address_of, url_option

if TYPE_CHECKING:
    from spark_streams.wire.address.address import Address

_UNIX = "unix://"


def _of_now(address: Address) -> str:
    if address.is_cluster:
        from spark_streams.wire.topology.topology import topology_of

        return address.node(*topology_of(address).masters()[0]).resolve()
    if not address.asks_sentinels:
        return address.resolve()
    from spark_streams.wire.topology.sentinel import master

    return address.node(*master(address).node).resolve()


@click.command(short_help="The address for other clients.")
@click.option("--start", is_flag=True, help="Start the bundled engine where it does not run.")
@url_option
def url(start: bool, url: str) -> None:
    """The address that redis-py and other clients connect to: of the bundled engine, which runs behind embedded:, the
    Unix socket on which it listens. Where sentinels are asked it is the master's, of now; of a cluster it is a node's,
    for redis.RedisCluster.from_url and redis-cli -c. Another server's address is printed as it was given, with its
    password.

    Where the bundled engine does not run it says so, with exit code 1. One that --start started ends ten minutes after
    its last client, as every bundled engine does (embedded:?idle=3600 for another time).

    \b
    Examples:
      rstream url
      python -c "import redis; print(redis.Redis.from_url('$(rstream url)').keys())"
      rstream url --start --url embedded:///var/lib/streams
    """
    address = address_of(url, start)
    if start and not address.is_embedded:
        raise click.UsageError(f"--start starts the bundled engine, and {address} is another server: leave it out")
    found = _of_now(address)
    click.echo(found)
    if sys.stdout.isatty() and found.startswith(_UNIX):
        click.echo(f"redis-cli takes it as: redis-cli -s {found.removeprefix(_UNIX).partition('?')[0]}", err=True)
