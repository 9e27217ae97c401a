"""The bounds of a dry run: options with which the change is no more than the dry run has shown.

A dead letter, an entry, a group or a stream that arrives after the dry run is not part of the change. The options
replace those of the same name. The console adds them to the command of the button.

A command that changes groups has one such option: `--only STREAM GROUP ID`, for each group of the dry run. ID is what
the dry run has shown of it: the last entry, or the group's position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import click
from click.core import ParameterSource

from spark_streams.base.ids import MAX_ID, MIN_ID, InvalidStreamId, StreamId
from spark_streams.connector.operator_commands import ONLY, shell_words
from spark_streams.operations.commands.shared import say

NO_GROUP = "-"  # instead of an ID: the group did not exist
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Only:
    """The groups of a dry run: (stream, group) with an ID, or NO_GROUP. Without any, nothing is bounded."""

    ids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def has(self, stream: str, group: str) -> bool:
        """Whether this group may be changed."""
        return not self.ids or (stream, group) in self.ids

    def id(self, stream: str, group: str) -> StreamId | None:
        """Return the ID of the group; None if there is no bound."""
        text = self.ids.get((stream, group))
        return None if text is None else MIN_ID if text == NO_GROUP else StreamId.parse(text)

    def streams(self, streams: Sequence[str]) -> list[str]:
        """Return those of the streams that the dry run has shown."""
        shown = {stream for stream, _ in self.ids}
        return [stream for stream in streams if not self.ids or stream in shown]

    def last_of(self, stream: str) -> StreamId:
        """Return the lowest ID of the stream's groups; the highest possible one if there is no bound."""
        return min((StreamId.parse(last) for (name, _), last in self.ids.items() if name == stream), default=MAX_ID)

    def stands(self, stream: str, group: str, position: str) -> bool:
        """Whether this group may be changed, and stands where it stood in the dry run. position: where it stands, or
        NO_GROUP."""
        return not self.ids or self.ids.get((stream, group)) == position


def only_option(command: F) -> F:
    """Add `--only`, which the command receives as `only`."""
    text = "Only this group of this stream, up to this ID of its dry run; repeatable."
    return click.option(ONLY, "only", metavar="STREAM GROUP ID", nargs=3, multiple=True, callback=_only, help=text)(
        command
    )


def _only(ctx: click.Context, param: click.Parameter, values: Sequence[tuple[str, str, str]]) -> Only:
    for *_, last in values:
        try:
            if last != NO_GROUP:
                StreamId.parse(last)
        except InvalidStreamId:
            raise click.BadParameter(
                f"{last!r} is not the ID of an entry, such as 1795163834542-0", ctx, param
            ) from None
    return Only({(stream, group): last for stream, group, last in values})


def only_these(groups: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the bound of a change of groups, as words. groups: stream, group, ID; without ID no entry is changed."""
    return [word for stream, group, last in groups for word in (ONLY, stream, group, last or str(MIN_ID))]


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
    """Return the bound of a change of one stream's entries: the last of these IDs. An empty text is none."""
    last = max((StreamId.parse(last_id) for last_id in last_ids if last_id), default=MIN_ID)
    return bounds_of({"last-id": [str(last)]})


def say_bounds(bounds: Sequence[str]) -> None:
    """Print the options, if there are any."""
    if bounds:
        say(f"to change no more than this, set or replace these options: {shell_words([*bounds, '--yes'])}")
