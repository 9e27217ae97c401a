"""`rstream …`: look at streams and groups of any server, run jobs, or serve the bundled engine.

Its commands are in commands/. Read-only ones never change a stream or a group, and start no engine. Exit codes: 0 fine,
1 the server or the engine said no, 2 usage, 3 something is not well: a group is further behind than `rstream lag` was
told to allow, `rstream doctor` has found a warning or worse, a dry run (`rstream groups …`) would be refused now.
"""

from __future__ import annotations

import click

from spark_streams._version import __version__
from spark_streams.commands.add import add
from spark_streams.commands.dead.dead import dead
from spark_streams.commands.groups.groups import groups
from spark_streams.commands.groups.replay import replay
from spark_streams.commands.init import init
from spark_streams.commands.look.doctor import doctor
from spark_streams.commands.look.exporter import exporter
from spark_streams.commands.look.lag import lag
from spark_streams.commands.look.pending import pending
from spark_streams.commands.look.report import report
from spark_streams.commands.look.show import show
from spark_streams.commands.look.streams import streams
from spark_streams.commands.look.tail import tail
from spark_streams.commands.look.top import top
from spark_streams.commands.run import run
from spark_streams.commands.serve import serve
from spark_streams.commands.shards import shards
from spark_streams.commands.shared import Group
from spark_streams.commands.url import url


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rstream")
def main() -> None:
    """Redis Streams for Spark: what is in the streams, who reads them, jobs, and a stream engine for this machine.

    The server is --url or $RSTREAM_URL, else the bundled engine of this machine (embedded:).

    \b
    Examples:
      rstream streams                   what is there
      rstream show orders --last 3      what is in it
      rstream tail orders -f            and what comes
      rstream top                       who keeps up, live
      rstream report --for 60s          a page for the browser
      rstream lag --max 10000           an exit code for an alert
      rstream exporter                  metrics of all streams and groups, for Prometheus
      rstream groups seek orders --group etl --to 1h   what it would take to read an hour again; --yes does it
      rstream replay orders --group etl --from 1h      a stopped query reads the last hour again
      rstream add orders customer=ann amount=12.50
      rstream dead list                 what could not be processed
      rstream init etl --stream orders  a job's configuration to begin with
      rstream run etl --config etl.toml a job of Spark, without a program of your own
      rstream doctor                    whether a server is fit for streams, and what to set
      rstream url                       where other clients find the bundled engine
      rstream COMMAND --help            more of these
    """


for _command in (
    *(streams, shards, show, tail, groups, replay, lag, pending, top, report, exporter, add, dead),
    *(doctor, init, run, url, serve),
):
    main.add_command(_command)

if __name__ == "__main__":
    main()
