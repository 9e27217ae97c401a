"""A plan by hand that goes one way, and what its story must tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.simulation.histories import plan
from tools.simulation.plan import NEVER_AHEAD
from tools.simulation.powers_spark import TWIN_TICKS
from tools.simulation.setup import Plan
from tools.simulation.step import Step


@dataclass(frozen=True)
class Told:
    """A plan, texts of its story in their order, and a pattern that is nowhere in it ("": there is none)."""

    plan: Plan
    texts: Sequence[str]
    never: str = ""


def told(
    texts: str | Sequence[str],
    *steps: Step | str,
    sink: str = "recorder",
    ahead: int = NEVER_AHEAD,
    never: str = "",
    **options: str,
) -> Told:
    """Return a plan of one stream with five entries, or of those of option `streams`."""
    made = plan(*steps, sink=sink, **options)
    given = dict(made.setup.options)
    streams = len(given["streams"].split(","))
    if "streamsPattern" in options:
        del given["streams"]
    has_values = any("misfit" in (step, getattr(step, "kind", "")) for step in steps)
    made = replace(made, setup=replace(made.setup, streams=streams, ahead=ahead, options=given, has_values=has_values))
    return Told(made, (texts,) if isinstance(texts, str) else texts, never)


def at(
    text: str, kind: str, nth: int = 1, amount: float = 0.0, how: float = 0.0, options: Sequence[tuple[str, str]] = ()
) -> Step:
    """Return a step that happens before the nth request with this text. A twin stands still before its own one."""
    delay, amount = (0, (nth - 1) / TWIN_TICKS) if kind == "twin" else (nth, amount)
    return Step(kind, delay, amount=amount, how=how, options=tuple(options), at=text)
