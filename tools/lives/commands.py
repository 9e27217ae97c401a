"""The commands of a life: how each is drawn from what is there, and what it may change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.lives.life import CLIENTS, DEAD, REPAIRED, Life, text_of
from tools.lives.state import Group, State, all_places, mark_of

Words = list[str]


@dataclass(frozen=True)
class Command:
    """A command. may: the kinds of changes that it may make (fields of Change); none: it only reads; at_once: it makes
    them without --yes."""

    draw: Callable[[Life, State], Words | None]
    may: frozenset[str] = frozenset()
    at_once: bool = False


def _place(life: Life, state: State) -> tuple[str, str] | None:
    places = [*all_places(state)]
    if life.near in places and life.chance.random() < 0.7:
        return life.near
    return life.chance.choice(places) if places else None


def _streams(life: Life, state: State, group: str, stream: str) -> Words:
    """Return one stream of the group, or all that have it."""
    having = [name for name, one in state.streams.items() if group in one.groups]
    return having if life.chance.random() < 0.25 else [stream]


def _target(life: Life, state: State, stream: str, relative: bool = True) -> str:
    ids = [*state.streams[stream].entries] or [(0, 0)]
    forms = ["earliest", "latest", "1h", "30s", *[text_of(life.chance.choice(ids)) for _ in range(3)]]
    if relative:
        forms += [f"-{life.chance.randint(1, 6)}", f"+{life.chance.randint(1, 6)}"]
    return life.chance.choice(forms)


def _maybe(life: Life, share: float, *words: str) -> Words:
    return [*words] if life.chance.random() < share else []


def seek(life: Life, state: State) -> Words | None:
    """Set a group."""
    if (place := _place(life, state)) is None:
        return None
    stream, group = place
    return [
        *("groups", "seek", *_streams(life, state, group, stream), "--group", group),
        *(f"--to={_target(life, state, stream)}", *_maybe(life, 0.5, "--even-active")),
    ]


def create(life: Life, state: State) -> Words | None:
    """Create a group, of a stream that may not exist."""
    stream = life.chance.choice([*life.streams, "new"])
    start = _target(life, state, stream, relative=False) if stream in state.streams else "latest"
    group = life.chance.choice(("fresh", "audit", "g", "h"))
    return ["groups", "create", stream, "--group", group, f"--start={start}", *_maybe(life, 0.5, "--mkstream")]


def delete(life: Life, state: State) -> Words | None:
    """Delete a group."""
    if (place := _place(life, state)) is None:
        return None
    stream, group = place
    names = _streams(life, state, group, stream)
    return ["groups", "delete", *names, "--group", group, *_maybe(life, 0.5, "--even-active")]


def delete_consumer(life: Life, state: State) -> Words | None:
    """Delete a consumer."""
    if (place := _place(life, state)) is None or not (group := state.group(*place)) or not group.consumers:
        return None
    return [
        *("groups", "delete", place[0], "--group", place[1], "--consumer", life.chance.choice([*group.consumers])),
        *(*_maybe(life, 0.6, "--forget-pending"), *_maybe(life, 0.5, "--even-active")),
    ]


def _selection(life: Life, state: State, place: tuple[str, str]) -> Words:
    group = state.group(*place)
    ids = [] if group is None else [*group.pending]
    chosen = text_of(life.chance.choice(ids)) if ids else "5-5"
    return life.chance.choice(
        ([], [], ["--idle", life.chance.choice(("1s", "35s", "1h"))], ["--limit", str(life.chance.randint(1, 4))],
         ["--first-id", chosen], ["--last-id", chosen], ["--id", chosen])
    )  # fmt: skip


def _holder(life: Life, group: Group) -> str:
    """Return a consumer, mostly one that holds entries."""
    holders = sorted({one.consumer for one in group.pending.values()} & group.consumers.keys())
    return life.chance.choice(holders if holders and life.chance.random() < 0.8 else [*group.consumers])


def at_a_mark(state: State) -> list[tuple[str, str, str, str]]:
    """Return who holds an entry right above the commit mark of a query: (stream, group, consumer, query)."""
    return [
        (*place, one.consumer, query)
        for place in all_places(state)
        if (group := state.group(*place)) is not None
        for query in group.consumers
        if (mark := mark_of(state, place, query)) is not None
        and (one := group.pending.get((mark.id.ms, mark.id.seq + 1))) is not None
        and one.consumer not in ("", query)
    ]


def claim(life: Life, state: State) -> Words | None:
    """Hand over entries of a consumer, or released ones."""
    if (place := _place(life, state)) is None or not (group := state.group(*place)) or not group.consumers:
        return None
    source = _holder(life, group)
    others = [name for name in {*group.consumers, *CLIENTS, "spark"} if name != source]
    to, even = life.chance.choice(sorted(others)), _maybe(life, 0.5, "--even-active")
    if (found := at_a_mark(state)) and life.chance.random() < 0.8:
        stream, name, source, to = life.chance.choice(found)
        return ["groups", "claim", stream, "--group", name, "--from", source, "--to", to, *even]
    head = ["groups", "claim", place[0], "--group", place[1], "--to", to, *even]
    selection = _selection(life, state, place)
    if life.chance.random() < 0.15 and "--idle" not in selection:
        return [*head, "--released", *selection]
    return [*head, "--from", source, *selection]


def ack(life: Life, state: State) -> Words | None:
    """Acknowledge entries."""
    if (place := _place(life, state)) is None or not (group := state.group(*place)):
        return None
    head = ["groups", "ack", place[0], "--group", place[1], *_maybe(life, 0.5, "--even-active")]
    selection = _selection(life, state, place)
    if group.consumers and life.chance.random() < 0.6:
        return [*head, "--consumer", _holder(life, group), *selection]
    return [*head, *(selection or ["--all"])]


def release(life: Life, state: State) -> Words | None:
    """Release entries."""
    if (place := _place(life, state)) is None or not (group := state.group(*place)) or not group.consumers:
        return None
    return [
        *("groups", "release", place[0], "--group", place[1]),
        *("--consumer", _holder(life, group), *_selection(life, state, place)),
        *("--mode", life.chance.choice(("fail", "silent", "fatal")), *_maybe(life, 0.5, "--even-active")),
    ]


def prune(life: Life, *words: str) -> Words | None:
    """Delete groups that nobody uses; or forget those that hold entries back; or delete idle consumers."""
    if not words and life.no_ack > 0.5 and life.chance.random() < 0.6:
        life.abandon()
    return ["groups", "prune", *words, "--idle", life.chance.choice(("1m", "1h", "1d"))]


def replay(life: Life, state: State) -> Words | None:
    """Let a query read again."""
    if (place := _place(life, state)) is None:
        return None
    to = [f"--to={_target(life, state, place[0])}"] if life.chance.random() < 0.6 else []
    names = [query.name for query in life.queries if query.group == place[1]]
    consumer = ["--consumer", life.chance.choice(names)] if names and life.chance.random() < 0.5 else []
    return ["replay", place[0], "--group", place[1], f"--from={_target(life, state, place[0])}", *to, *consumer]


def trim(life: Life, state: State) -> Words | None:
    """Remove what no group needs."""
    return ["trim", "--acked", *_maybe(life, 0.5, life.chance.choice([*state.streams] or ["s"]))]


def redrive(life: Life, state: State) -> Words | None:
    """Send dead letters back."""
    if DEAD not in state.streams:
        return None
    more = life.chance.choice(([], ["--set", "n=5"], ["--limit", "2"], ["--max-redrives", "0"]))
    to = ["--to", REPAIRED] if life.has_files and life.chance.random() < 0.5 else []
    return ["dead", "redrive", DEAD, *more, *to]


def purge(life: Life, state: State) -> Words | None:
    """Delete dead letters."""
    return ["dead", "purge", DEAD, *_maybe(life, 0.5, "--limit", "2")] if DEAD in state.streams else None


def lag(life: Life, state: State) -> Words | None:
    """How far groups are behind."""
    return ["lag", *_maybe(life, 0.5, life.chance.choice([*state.streams] or ["s"]))]


def where(life: Life, state: State) -> Words | None:
    """What became of an entry: one that is there, that was, that became a dead letter, or a dead letter."""
    dead = state.streams[DEAD].entries if DEAD in state.streams else {}
    there = [(stream, text_of(key)) for stream in life.streams if stream in state.streams
             for key in state.streams[stream].entries]  # fmt: skip
    known = [(stream, text_of(key)) for stream, key in life.known if not stream.startswith("@")]
    letters = [(fields["dl.stream"], fields["dl.id"]) for fields in dead.values() if "dl.id" in fields]
    repaired = state.streams[REPAIRED].entries.values() if REPAIRED in state.streams and life.has_files else ()
    firsts = {fields["dl.redriven"].rpartition(" ")[2] for fields in repaired if "dl.redriven" in fields}
    sent = [(stream, text_of(key)) for stream, key in life.known if stream in life.streams and text_of(key) in firsts]
    drawn = [found for found in (there, known, letters, [(DEAD, text_of(key)) for key in dead], sent) if found]
    more = ["--sent-to", REPAIRED] if repaired else []
    return ["where", *life.chance.choice(life.chance.choice(drawn)), *more] if drawn else None


def copy(life: Life, state: State) -> Words | None:
    """Copy a stream into another one, or to the second server; maybe as once before."""
    if life.copies and life.chance.random() < 0.4:
        return life.chance.choice(life.copies)
    if not state.streams:
        return None
    source = life.chance.choice([*state.streams])
    target, elsewhere = f"copy{life.chance.randint(1, 3)}", ["--to-url", life.other.url]
    if target == source:
        return None
    place = life.chance.choice(([target], [target, *elsewhere], [source, *elsewhere]))
    ids = [text_of(key) for key in state.streams[source].entries] or ["5-5"]
    count = str(life.chance.randint(1, 6))
    more = life.chance.choice(
        ([], [], ["--from", life.chance.choice(ids)], ["--to", life.chance.choice(ids)], ["--last", count],
         ["--limit", count])
    )  # fmt: skip
    words = ["copy", source, *place, *more, *_maybe(life, 0.5, "--rate", "10"), *_maybe(life, 0.5, "--groups")]
    life.copies.append(words)
    return words


def add(life: Life, state: State) -> Words | None:
    """Add an entry, one again with another value, or lines from standard input."""
    stream, value = life.chance.choice([*life.streams, "new"]), str(life.chance.randint(1, 99))
    ids = [text_of(key) for key in state.streams[stream].entries] if stream in state.streams else []
    form = life.chance.choice(("one", "again", "lines", "lines"))
    if form == "lines":
        lines = [{"n": value, "number": number, "none": None} for number in range(life.chance.randint(0, 9))]
        life.stdin = "".join(f"{json.dumps(line)}\n" for line in lines)
        return ["add", stream, "-"]
    again = ["--again", life.chance.choice(ids), "--unset", "number"] if form == "again" and ids else []
    return ["add", stream, f"n={value}", *again, *_maybe(life, 0.2, "--no-create")]


def export(life: Life, state: State) -> Words | None:
    """Write the entries of a stream to a file."""
    if not state.streams:
        return None
    stream = life.chance.choice([*state.streams])
    count = str(life.chance.randint(1, 6))
    more = life.chance.choice(([], [], ["--last", count], ["--limit", count]))
    return ["export", stream, f"{life.folder}/{stream}-{life.chance.randint(1, 2)}.jsonl", *more]


def import_(life: Life, state: State) -> Words | None:
    """Append the entries of a file, to a new stream, or to one that has some of them."""
    if not life.files:
        return None
    file = life.chance.choice([*life.files])
    target = life.chance.choice(("copy1", "copy2", "copy3", life.chance.choice(life.streams)))
    return ["import", file, target, *_maybe(life, 0.3, "--limit", str(life.chance.randint(1, 6)))]


def doctor(life: Life, state: State) -> Words | None:
    """What is wrong with the server."""
    return ["doctor", *[word for stream in life.streams for word in ("--stream", stream)]]


def _may(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


COMMANDS: Mapping[str, tuple[float, Command]] = {
    "seek": (3, Command(seek, _may("moved", "keys"))),
    "create": (1.5, Command(create, _may("made"))),
    "delete": (1, Command(delete, _may("destroyed", "keys"))),
    "delete consumer": (2, Command(delete_consumer, _may("left", "gone", "pending", "keys"))),
    "claim": (3, Command(claim, _may("handed", "gone"))),
    "ack": (3, Command(ack, _may("gone"))),
    "release": (2, Command(release, _may("handed"))),
    "prune": (2, Command(lambda life, _: prune(life), _may("destroyed", "keys"))),
    "prune hold": (2, Command(lambda life, _: prune(life, "--hold"), _may("removed", "keys"))),
    "prune consumers": (2, Command(lambda life, _: prune(life, "--consumers"), _may("left", "gone", "pending"))),
    "replay": (3, Command(replay, _may("pending", "keys"))),
    "trim": (3, Command(trim, _may("removed"))),
    "copy": (2.5, Command(copy, _may("added", "made", "moved", "keys"))),
    "redrive": (2, Command(redrive, _may("removed", "added", "keys"))),
    "purge": (1, Command(purge, _may("removed", "keys"))),
    "lag": (1.5, Command(lag)),
    "where": (3, Command(where)),
    "list": (0.5, Command(lambda *_: ["groups", "list"])),
    "pending": (0.5, Command(lambda life, _: ["pending", life.chance.choice(life.streams)])),
    "doctor": (0.7, Command(doctor)),
}
# Of lives with files; the others are drawn as before there were these.
OF_FILES: Mapping[str, tuple[float, Command]] = {
    "add": (3, Command(add, _may("added"), at_once=True)),
    "export": (3, Command(export)),
    "import": (4, Command(import_, _may("added"))),
    "redrive": (8, COMMANDS["redrive"][1]),
}
