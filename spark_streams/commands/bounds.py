"""The bounds of a dry run: options with which the change is no more than the dry run has shown.

A dead letter, an entry or a stream that arrives after the dry run is not part of the change. The options replace those
of the same name. The console adds them to the command of the button.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click
from click.core import ParameterSource

from spark_streams.commands.shared import say
from spark_streams.model.ids import StreamId
from spark_streams.model.operator_commands import shell_words


def bounds_of(options: Mapping[str, Iterable[str]], *flags: str) -> list[str]:
    """Return the options as words. options: values by name, without `--`."""
    words: list[str] = []
    for name, values in options.items():
        for value in values:
            words += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return [*words, *(f"--{flag}" for flag in flags)]


def typed_options(context: click.Context, *without: str) -> list[str]:
    """Return the options that the user has typed, as words. without: names of parameters to leave out. The server's
    URL and login are never among them: they may hold a password."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        is_typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not isinstance(parameter, click.Option) or not is_typed or name in ("url", *without):
            continue
        value = context.params.get(name)
        option = parameter.opts[0].removeprefix("--")
        if parameter.is_flag:
            words += bounds_of({}, option)
        elif value is not None:
            words += bounds_of({option: map(str, value if parameter.multiple else [value])})
    return words


def up_to_last(last_ids: Iterable[str]) -> list[str]:
    """Return the bound of a change of entries: the last of these IDs. An empty text is none."""
    last = max((StreamId.parse(last_id) for last_id in last_ids if last_id), default=None)
    return bounds_of({} if last is None else {"last-id": [str(last)]})


def say_bounds(bounds: Sequence[str]) -> None:
    """Print the options, if there are any."""
    if bounds:
        say(f"to change no more than this, set or replace these options: {shell_words([*bounds, '--yes'])}")
