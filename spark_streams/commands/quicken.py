"""`rstream quicken`: Sparks of this installation start in half the time."""

from __future__ import annotations

import sys

import click


@click.command(short_help="Let Spark start in half the time.")
@click.option("--undo", is_flag=True, help="Take it back.")
def quicken(undo: bool) -> None:
    """Let the Spark of this Python start in half the time: once for an installation, half a minute and 200 MB.

    Java keeps Spark's classes as it has them in memory, in a file of your cache folder, which `rstream run` then uses;
    PySpark is compiled within its own archives, which every process of Spark's Python imports. Nothing else changes.
    Run it again where another Spark or Java is installed. What it prints is for other programs that start Spark.

    \b
    Examples:
      rstream quicken
      export SPARK_SUBMIT_OPTS="$(rstream quicken)"; python my_query.py
      rstream quicken --undo
    """
    from spark_streams.spark.compiled_zips import compile_within, drop_compiled, is_compiled, zips
    from spark_streams.spark.quick_start import class_archive, make_class_archive, options_for, spark_home

    home, classes = spark_home(), class_archive()
    try:
        if undo:
            for one in filter(is_compiled, zips(home)):
                drop_compiled(one)
            if classes is not None:
                classes.unlink(missing_ok=True)
            click.echo(f"the Spark of {home} starts as it did before", err=True)
            return
        for one in zips(home):
            if not is_compiled(one):
                compile_within(one)
                click.echo(f"compiled {one}", err=True)
    except OSError as error:
        raise click.ClickException(f"{error.filename} cannot be changed: {error.strerror}") from None
    if classes is None:
        raise click.ClickException("no Java found: install a JDK 17 or newer, or set JAVA_HOME")
    if not classes.exists():
        click.echo("a short life of a Spark shows its classes …", err=True)
        make_class_archive(classes)
        click.echo(f"kept {classes.stat().st_size / 1e6:.0f} MB of classes in {classes}", err=True)
    if not sys.stdout.isatty():
        click.echo(options_for(classes))
    else:
        click.echo(
            'the jobs of `rstream run` use it; for others: export SPARK_SUBMIT_OPTS="$(rstream quicken)"', err=True
        )
