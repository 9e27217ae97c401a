"""The verdict of a journey: what is known of the entry now, in one line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_streams.operations.journey.line import Line

Said = Callable[[Line], str]


def _batch(line: Line) -> str:
    return f"in batch {line.facts['batch']} of query {line.facts['query'] or '(no ID)'}"


def _row(line: Line) -> str:
    return f"its row is in table {line.facts['table']}" if line.facts["files"] else f"no row in {line.facts['table']}"


# Events in the order of the verdict, and what it says of each.
_SAID: Mapping[str, Said] = {
    "batch": _batch,
    "trimmed": lambda _: "removed from the stream",
    "deleted": lambda _: "removed from the stream",
    "removed": lambda _: "removed from the stream",
    "absent": lambda line: (
        f"not in the stream: {' or '.join(possible)}" if (possible := _possible(line)) else line.text
    ),
    "never added": lambda _: "never added",
    "dead": lambda line: f"dead letter {line.facts['stream']}/{line.facts['id']}",
    "waiting": lambda line: f"waits for attempt {line.facts['attempt']}" if "attempt" in line.facts else line.text,
    "returned": lambda line: f"returned as {line.facts['stream']}/{line.facts['id']}",
    "pending": lambda line: f"pending in group {line.group}",
    "not delivered": lambda line: f"not delivered to group {line.group}",
    "sent back": lambda line: f"sent back as {line.facts['stream']}/{line.facts['id']}" if "id" in line.facts else "",
    "row": _row,
    "archived": lambda line: "archived" if "files" in line.facts else "",
}
_PRESENT, _AFTER = "in the stream", "never added"  # it comes after these events
_GONE = {"trimmed", "deleted", "removed", "absent", "never added"}
# What the line itself says is not known in detail, but its event is proved.
_PROVED = {"removed", "absent", "not delivered", "waiting"}


def verdict(lines: Sequence[Line]) -> str:
    """Return the verdict. What is not proved of this entry has the word `perhaps`."""
    parts: list[str] = []
    is_gone = any(line.event in _GONE for line in lines)
    for event, said in _SAID.items():
        parts += [_PRESENT] if event == _AFTER and not is_gone else []
        for line in lines:
            if line.event == event and (text := said(line)):
                parts.append(text if line.is_exact or event in _PROVED else f"perhaps {text}")
    return "; ".join(dict.fromkeys(parts))


def _possible(line: Line) -> Sequence[str]:
    possible = line.facts.get("possible")
    return possible if isinstance(possible, list) else []
