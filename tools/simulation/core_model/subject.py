"""What a history tests: the model, or the product (product.py). Both have the calls of Spark."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

from tools.simulation.core_model.facts import Mark
from tools.simulation.core_model.source import Source


class Keys(Protocol):
    """Names of the keys that a subject has beside a stream."""

    def streams_of(self, stream: str) -> list[str]:
        """Return the stream, and the one of its dead letters."""

    def all_of(self, stream: str) -> list[str]:
        """Return these and the strings beside them that a restored server has in an older state."""

    def mark(self, stream: str) -> str:
        """Return the key of the commit mark."""

    def record(self, stream: str) -> str:
        """Return the key of the record of batches that kill the query."""

    def sought(self, position: str, before: str | None) -> str:
        """Return the mark of an operator who has set the group to a position. before: the mark by then."""


class Subject(Keys, Protocol):
    """How a process of the subject begins. name: for tables."""

    name: str

    def start(self, world: Any) -> Any:
        """Return the source of a new process of the driver."""

    def bury(self) -> None:
        """The process is dead."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which one history runs."""


@dataclass(frozen=True)
class Model:
    """The model."""

    name: str = "model"

    def streams_of(self, stream: str) -> list[str]:
        return [stream, f"dead:{stream}"]

    def all_of(self, stream: str) -> list[str]:
        return [*self.streams_of(stream), self.mark(stream), self.record(stream)]

    def mark(self, stream: str) -> str:
        return f"mark:{stream}"

    def record(self, stream: str) -> str:
        return f"record:{stream}"

    def sought(self, position: str, before: str | None) -> str:
        return f"{position} {Mark.parse(before).number if before else 0}.seek"

    def start(self, world: Any) -> Source:
        powers = world.scenario.powers
        return Source(
            world.server, world.key, world.hook, world.report, strict=not world.lenient_once,
            claims=lambda name: "claims" in powers and name in world.dead_consumers,
            max_deaths=2 if "poison" in powers else None,
            prefetch="claims" not in powers and not world.scenario.in_step,
        )  # fmt: skip

    def bury(self) -> None:
        pass

    def running(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


MODEL = Model()
