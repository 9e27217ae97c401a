"""`rstream serve`: serve the bundled engine."""

from __future__ import annotations

import sys

import click


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
