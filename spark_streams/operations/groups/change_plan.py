"""A change of a group as one value: a dry run computes its effect, `apply` makes it.

A plan is a generator. It yields each step, gets its reply (None in a dry run), and returns the effect of the change:

    effect(plan)          no step is made
    apply(server, plan)   each step is made; a transaction only while none of its queries is running

So a dry run and the change that it shows are one text. The bounds of a dry run (`--only STREAM GROUP ID`) are part of
the plan: it is made with them, and each effect names its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.admin.groups import change
from spark_streams.connector.operator_commands import ONLY
from spark_streams.connector.wire.connection import Argument, Reply, Server

NO_GROUP = "-"  # instead of an ID: the group did not exist
E = TypeVar("E")
Bound = tuple[str, str, str]  # stream, group, ID: what `--only` takes


@dataclass(frozen=True)
class Transaction:
    """Commands on keys of one stream's slot, and what must not run meanwhile."""

    stream: str
    group: str
    queries: Sequence[str]  # none of these may be running in the group
    commands: Sequence[Sequence[Argument]]
    of_all: bool = False  # nor any other query of the group


Step = Transaction | Callable[[], Reply]  # a call: on keys of other slots, or by a protocol of its own
Plan = Generator[Step, Reply, E]


def made() -> bool:
    """A step that changes nothing: its reply is True if the change is made, None in a dry run."""
    return True


def effect(plan: Plan[E]) -> E:
    """Return what the change would do. Raises errors of the plan."""
    return _run(plan, lambda step: None)


def apply(server: Server, plan: Plan[E]) -> E:
    """Make the change, and return what it has done. Raises GroupInUseError, errors of the plan and ServerError: steps
    before the error stay made."""
    return _run(
        plan,
        lambda step: (
            change(server, step.stream, step.group, step.queries, step.commands, of_all=step.of_all)
            if isinstance(step, Transaction)
            else step()
        ),
    )


def _run(plan: Plan[E], make: Callable[[Step], Reply]) -> E:
    reply = None
    while True:
        try:
            reply = make(plan.send(reply))
        except StopIteration as ended:
            done: E = ended.value
            return done


class AtPosition:
    """A change of a group, which is bounded to its position."""

    stream: str
    group: str
    position: str

    @property
    def bound(self) -> Bound:
        """What it is bounded to."""
        return self.stream, self.group, self.position


class UpToLast:
    """A change of entries, which is bounded to the last one."""

    stream: str
    group: str
    last: str

    @property
    def bound(self) -> Bound:
        """What it is bounded to."""
        return self.stream, self.group, self.last


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


UNBOUNDED = Only()


def only_these(bounds: Iterable[Bound]) -> list[str]:
    """Return the bounds of a change of groups, as words. Without an ID no entry is changed."""
    return [word for stream, group, last in bounds for word in (ONLY, stream, group, last or str(MIN_ID))]
