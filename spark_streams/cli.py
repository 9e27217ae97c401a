"""`rstream …`: look at streams and groups of any server, or serve the bundled engine. Its commands are in commands/.

Read-only commands never change a stream or a group. Exit codes: 0 fine, 1 the server or the engine said no, 2 usage.
"""

from __future__ import annotations

import click

from spark_streams import __version__
from spark_streams.commands.serve import serve
from spark_streams.commands.shared import Group
from spark_streams.commands.streams import groups, streams


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rstream")
def main() -> None:
    """Redis Streams for Spark: what is in the streams, who reads them, and a stream engine for this machine."""


for _command in (streams, groups, serve):
    main.add_command(_command)

if __name__ == "__main__":
    main()
