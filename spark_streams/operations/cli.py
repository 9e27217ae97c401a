"""`rstream …`: show streams and groups of any server, change groups, run jobs, or serve the bundled engine.

The commands are in commands/. A read-only command never changes a stream or a group, and starts no engine. Exit codes:
0 success; 1 error of the server or the engine; 2 wrong usage; 3 a check failed: a group is further behind than
`rstream lag` allows, or missing, `rstream doctor` reports a warning or a danger, `rstream wait` has waited in vain, or
a change (`rstream groups …`, `rstream copy`) would be refused; 4 `rstream lag --max-seconds` could not be checked, or
`rstream verify` has proved nothing.
"""

from __future__ import annotations

import click

from spark_streams.base.version import __version__
from spark_streams.operations.commands.add import add
from spark_streams.operations.commands.console import console
from spark_streams.operations.commands.dead import dead
from spark_streams.operations.commands.dead_redrive import redrive
from spark_streams.operations.commands.engine import serve, url
from spark_streams.operations.commands.groups.deletions import trim
from spark_streams.operations.commands.groups.positions import groups, replay
from spark_streams.operations.commands.help import show_help
from spark_streams.operations.commands.jobs import init, run
from spark_streams.operations.commands.read.lag import lag
from spark_streams.operations.commands.read.monitor import exporter, top
from spark_streams.operations.commands.read.server_check import doctor
from spark_streams.operations.commands.read.show_entries import show, tail, where
from spark_streams.operations.commands.read.stream_lists import pending, streams, wait
from spark_streams.operations.commands.shards import shards
from spark_streams.operations.commands.shared import CommandGroup
from spark_streams.operations.commands.transfer_entries import copy, export, import_file
from spark_streams.operations.commands.verify import verify


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rstream")
def main() -> None:
    """Redis Streams for Spark: show streams and consumer groups, run Spark jobs, serve a stream engine on this machine.

    A command that changes something is a dry run without --yes. add appends entries at once.

    The server is --url, else $RSTREAM_URL, else the bundled engine of this machine (embedded:).

    \b
    Examples:
      rstream streams                   list the streams
      rstream show orders --last 3      show the last 3 entries
      rstream where orders 1795163834542-0   tell what became of an entry
      rstream tail orders -f            follow new entries
      rstream top                       watch rates and lag live
      rstream lag orders --group etl --max 10000       exit code 3 if the group is too far behind, or missing
      rstream wait orders --group etl   end when the group has something to read
      rstream console                   serve a web console for a browser
      rstream exporter                  serve metrics of all streams and groups for Prometheus
      rstream groups seek orders --group etl --to 1h   preview: set the group back by an hour; --yes does it
      rstream replay orders --group etl --from 1h      preview: a stopped query reads the last hour again
      rstream add orders customer=ann amount=12.50     append an entry
      rstream trim --acked              preview: what no group needs any more; --yes removes it
      rstream copy orders orders --to-url URL --last 10000   preview: copy entries to another server; --yes does it
      rstream export orders orders.parquet   write entries to a file; rstream import reads them
      rstream dead list                 list dead letters: entries that could not be processed
      rstream init etl --stream orders  write a job's configuration
      rstream run etl --config etl.toml run a Spark job without writing a program
      rstream doctor                    check a server's settings, and print what to set
      rstream verify --engine           kill queries at random moments, and check that no entry is lost or twice
      rstream url                       print the address of the bundled engine for other clients
      rstream help                      list the pages of the documentation; rstream help TOPIC shows one
      rstream COMMAND --help            more about a command
    """


for _command in (
    *(streams, shards, show, where, tail, groups, replay, lag, pending, wait, top, exporter, console, add, trim),
    *(copy, export, import_file, dead, doctor, verify, init, run, url, serve, show_help),
):
    main.add_command(_command)
dead.add_command(redrive)

if __name__ == "__main__":
    main()
