"""What a command may change, and whether it has said so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_streams.connector.keys import PROBE
from spark_streams.connector.lag.survey import ACTIVE_MS
from tools.lives.commands import Command
from tools.lives.life import DEAD, REPAIRED, Life, Run, Segment, text_of
from tools.lives.state import Group, Key, State, key_of, mark_of

# A lease and its session come and go with a query.
_OF_LEASES = ("rstream:lease:", "rstream:session:")
NEVER = (0, 0)


def judge(life: Life, name: str, command: Command, dry: Run, done: Run | None, calm: bool) -> None:
    """Compare what a command has said and what has changed. done: its run with --yes, as far as it came; calm: nothing
    happened between both."""
    if not command.at_once:
        _reads_only(life, name, dry)
    if dry.answer.said is not None and dry.was_alone and (check := SAID.get(name)):
        for text in check(life, dry.segments[0], dry.answer.said, dry.answer.words):
            life.fault(f"{name}: {text}")
    if done is None:
        return
    for segment in done.segments:
        _only_its_kinds(life, name, command, segment)
        if name in ("copy", "import"):
            _only_its_target(life, segment, done.answer.words)
        _living_queries_keep_theirs(life, name, segment, done)
        _note_what_is_touched(life, name, segment, done)
    if dry.answer.said is not None and "--only" in done.answer.words:
        _within_bounds(life, name, done)
    if done.answer.said is None or done.answer.was_killed:
        return
    is_of_now = "--only" not in done.answer.words and any(
        word[-1:] in "sh" and "=" in word for word in done.answer.words
    )
    if calm and done.was_alone and dry.was_alone and done.answer.code == 0 and not is_of_now:
        _as_it_was_said(life, name, dry, done)
    for text in DONE[name](life, done, done.answer.said) if name in DONE else ():
        life.fault(f"{name}: {text}; {done.answer.said}")


_OWN_CLAIM = 10  # milliseconds for which a command's own claim keeps entries with their consumer


# -- all commands ------------------------------------------------------------------------------------------------------


def _reads_only(life: Life, name: str, run: Run) -> None:
    for segment in run.segments:
        done = segment.change
        keys = [key for key in done.keys if not key.startswith(_OF_LEASES)]
        if done.kinds - {"keys"} or keys:
            life.fault(f"{name}: without --yes it has changed {done}")


def _only_its_kinds(life: Life, name: str, command: Command, segment: Segment) -> None:
    done = segment.change
    handed = [pair for of_group in done.handed.values() for pair in of_group.values()]
    if name == "ack" and all("" in (was.consumer, now.consumer) for was, now in handed):
        command = replace(command, may=command.may | {"handed"})  # what was released since is released again
    if name == "replay" and all(not was.consumer for was, _ in handed):
        command = replace(command, may=command.may | {"handed"})  # what is released is taken, too
    if name == "release" and all(
        key not in segment.after.streams[stream].entries for (stream, _), gone in done.gone.items() for key in gone
    ):
        command = replace(command, may=command.may | {"gone"})  # XCLAIM of what is not in the stream
    if more := done.kinds - command.may:
        life.fault(f"{name}: it has changed {sorted(more)}: {done}")


def target_of(words: tuple[str, ...]) -> str:
    """Return the target of a copy."""
    return f"{'@' * ('--to-url' in words)}{words[2]}"


def _only_its_target(life: Life, segment: Segment, words: tuple[str, ...]) -> None:
    """A copy or an import appends entries of its source as they are, and sets groups of its target."""
    done, target, source = segment.change, target_of(words), words[1]
    others = {*done.added, *(stream for stream, _ in (*done.made, *done.moved))} - {target}
    if others:
        life.fault(f"{words[0]}: it has changed {others}: {done}")
    for key in done.added.get(target, ()):
        known = life.files[source].get(key) if source in life.files else life.known.get((source, key))
        if segment.after.all_streams[target].entries[key] != known:
            life.fault(f"{words[0]}: entry {text_of(key)} is not that of {source}")


def _living_queries_keep_theirs(life: Life, name: str, segment: Segment, run: Run) -> None:
    """A query that runs keeps its group, its position, its pending entries, its keys, and what it has not read; unless
    the command says that the query came too late to be seen."""
    done, before, text, running = segment.change, segment.before, run.answer.text, run.segments[-1].running
    for query in life.queries:
        if query.name not in segment.running or ("The change is made" in text and repr(query.name) in text):
            continue
        for stream in query.streams:
            place = (stream, query.group)
            group = before.group(*place)
            if group is None or not _holds_lease(before, place, query.name, segment.running):
                continue
            if query.name not in group.consumers:  # it has just begun, and reads the changed group, or has read it
                if name == "seek" and place in done.moved and run.answer.said is not None and query.name in running:
                    life.fault(f"seek: query {query.name} has begun beside it, and is not named")
                continue
            mark = mark_of(before, place, query.name)
            is_seen = mark is None or mark.has_pending_list
            if place in done.destroyed:
                life.fault(f"{name}: group {place} of running query {query.name} is deleted")
            if place in done.moved:
                life.fault(f"{name}: group {place} of running query {query.name} is moved to {done.moved[place][1]}")
            lost = {**done.gone.get(place, {}), **{key: one for key, (one, _) in done.handed.get(place, {}).items()}}
            # A group that was set back may deliver an entry between the command's own claim and its change.
            long_ago = segment.after.now - _OWN_CLAIM
            taken = [key for key, one in lost.items() if one.consumer == query.name and one.delivered < long_ago]
            if taken and place not in done.destroyed:
                life.fault(f"{name}: running query {query.name} has lost its entries {taken} of {place}")
            position = group.position if is_seen or mark is None else min(group.position, (mark.id.ms, mark.id.seq))
            for key in done.removed.get(stream, ()):
                if f"rstream:forgotten:{{{stream}}}:{query.group}" in before.keys or (
                    "was created, set back or given entries again" in text and f"'{query.group}'" in text
                ):
                    continue  # the query stops, and says so; or the command does
                if key > position or key in group.pending:
                    life.fault(f"{name}: entry {text_of(key)} of {stream}, which {place} needs, is removed")
            for beside, (was, now) in done.keys.items():
                # A deleted entry's own keys may go; what names the query is its own.
                is_own = f"{{{stream}}}" in beside and beside.endswith(f":{query.group}:{query.name}")
                if was is not None and now is None and is_own:
                    life.fault(f"{name}: key {beside} of running query {query.name} is deleted")


def _holds_lease(state: State, place: tuple[str, str], query: str, running: Mapping[str, int]) -> bool:
    """Whether this process of a query holds the lease: not an earlier one, whose lease is left."""
    lease = state.keys.get(f"rstream:lease:{{{place[0]}}}:{place[1]}:{query}")
    return lease is not None and json.loads(lease)["pid"] == running[query]


def _note_what_is_touched(life: Life, name: str, segment: Segment, run: Run) -> None:
    done = segment.change
    if not run.was_alone:  # a group that a query made behind the command's look has lost what it says
        life.thinned |= {*done.removed}
    life.touched |= {*done.moved, *done.destroyed, *done.made, *done.gone, *done.handed, *done.pending, *done.left}
    for key in done.keys:
        life.touched |= {
            (stream, query.group)
            for query in life.queries
            for stream in query.streams
            if f"{{{stream}}}" in key and f":{query.group}" in key
        }
    if name == "redrive":  # entries that come a second time
        life.count("letters redriven" if done.added else "nothing redriven")


def _within_bounds(life: Life, name: str, run: Run) -> None:
    """Each change is of a group that --only names, up to its ID."""
    words = run.answer.words
    bounds = {
        (words[at + 1], words[at + 2]): NEVER if words[at + 3] == "-" else key_of(words[at + 3])
        for at, word in enumerate(words)
        if word == "--only"
    }
    for segment in run.segments:
        done = segment.change
        changed = {*done.moved, *done.destroyed, *done.made, *done.gone, *done.handed, *done.pending, *done.left}
        if outside := changed - bounds.keys():
            life.fault(f"{name}: {sorted(outside)} are not in its bounds {bounds}")
        for place in changed & bounds.keys():
            keys = {**done.gone.get(place, {}), **done.handed.get(place, {}), **done.pending.get(place, {})}
            above = [key for key in keys if key > bounds[place]]
            if above and name not in ("prune consumers", "delete consumer"):  # these give entries back
                life.fault(f"{name}: {above} of {place} are above its bound {bounds[place]}")
            if place in done.moved and done.moved[place][1] != bounds[place]:
                life.fault(f"{name}: {place} is set to {done.moved[place][1]}, and not to {bounds[place]}")
        for stream in done.removed if name == "trim" else ():
            bound = min((last for (of, _), last in bounds.items() if of == stream), default=None)
            if bound is None or max(done.removed[stream]) > bound:
                life.fault(f"{name}: {stream} was trimmed up to {max(done.removed[stream])}, above {bound}")


_MOVING = {
    *("above", "fields", "idle_ms", "removed", "seconds", "letters_per_second"),
    *("dry_run", "bounds", "bound", "bytes", "consumers"),
}


def _as_it_was_said(life: Life, name: str, dry: Run, done: Run) -> None:
    """With nothing between them, both runs say the same but times."""
    said = [_without(run.answer.said, _MOVING) for run in (dry, done)]
    if name in ("prune", "prune hold", "prune consumers", "trim"):
        said = [one["streams"] for one in said]
    if name == "redrive":
        said = [_without(one, ["groups"]) for one in said]  # who will read again: of the dry run
    if name in ("copy", "import"):
        said = [{key: one.get(key) for key in ("already", "sent", "source", "groups")} for one in said]
    if said[0] != said[1]:
        life.fault(f"{name}: the dry run says {said[0]}, the change {said[1]}")


def _without(value: Any, names: Iterable[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(one, names) for key, one in value.items() if key not in names}
    return [_without(one, names) for one in value] if isinstance(value, list) else value


# -- what a dry run or a view says, beside the server ------------------------------------------------------------------


def _of(report: Mapping[str, Any]) -> tuple[str, str]:
    return report["stream"], report["group"]


def _unlike(what: str, said: object, true: object) -> list[str]:
    return [] if said == true else [f"{what} is said to be {said}, and is {true}"]


def _above(state: State, stream: str, position: Key) -> int:
    return sum(key > position for key in state.streams[stream].entries) if stream in state.streams else 0


def _sought(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        group, stream = state.group(*_of(one)), state.streams[one["stream"]]
        assert group is not None
        low, high = sorted((group.position, to := key_of(one["position"])))
        between = [key for key in stream.entries if low < key <= high]
        back = to < group.position
        yield from _unlike("position_before", one["position_before"], text_of(group.position))
        yield from _unlike("read_again", one["read_again"], len(between) if back else 0)
        yield from _unlike("skipped", one["skipped"], 0 if back else len(between))
        pending = [key for key in group.pending if low < key <= high] if back else []
        yield from _unlike("pending_again", one["pending_again"], len(pending))
        if one["lag"] is not None:
            yield from _unlike("lag", one["lag"], _above(state, one["stream"], to))


def _unlike_lag(life: Life, state: State, place: tuple[str, str], said: int) -> list[str]:
    """Compare a lag. The bookmark of a query with noAck counts the entries that the query has read, so the server's
    lag also has those that were deleted unread below it; so does each lag of Redis 7.0 (R16)."""
    group = state.group(*place)
    assert group is not None
    true = _above(state, place[0], group.position)
    may_be_more = (place[1].startswith("n") or life.version == "7.0") and place[0] in life.thinned
    return [] if may_be_more and true < said == group.lag else _unlike(f"lag of {place}", said, true)


def _created(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        yield from _unlike("makes_stream", one["makes_stream"], one["stream"] not in state.streams)
        if one["lag"] is not None:
            yield from _unlike("lag", one["lag"], _above(state, one["stream"], key_of(one["position"])))


def _deleted(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        if (group := state.group(*_of(one))) is not None and "--consumer" not in words:
            held = {name: sum(p.consumer == name for p in group.pending.values()) for name in group.consumers}
            yield from _unlike("consumers", one["consumers"], held)
            yield from _unlike("pending", one["pending"], len(group.pending))
            yield from _unlike_lag(life, state, _of(one), one["lag"])


def _option(words: tuple[str, ...], name: str) -> str | None:
    for at, word in enumerate(words):
        if word == name:
            return words[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _idle(words: tuple[str, ...]) -> int:
    text = _option(words, "--idle")
    return 0 if text is None else int(text[:-1]) * _UNITS[text[-1]]


def _chosen(state: State, group: Group, words: tuple[str, ...], consumers: Iterable[str] | None) -> list[Key]:
    """Return the pending entries that the options select, by consumer and ID."""
    first, last, single = (_option(words, name) for name in ("--first-id", "--last-id", "--id"))
    wanted = None if consumers is None else {*consumers}
    found = [
        (one.consumer or "\uffff", key)
        for key, one in group.pending.items()
        if (wanted is None or one.consumer in wanted)
        and (not _idle(words) or (one.consumer and state.now - one.delivered >= _idle(words)))
        and (first is None or key >= key_of(first))
        and (last is None or key <= key_of(last))
        and (single is None or key == key_of(single))
    ]
    limit = _option(words, "--limit")
    return [key for _, key in sorted(found)][: None if limit is None else int(limit)]


def _acknowledged(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    consumer = _option(words, "--consumer")
    for one in said["streams"]:
        group = state.group(*_of(one))
        assert group is not None
        chosen = _chosen(state, group, words, None if consumer is None else [consumer])
        yield from _unlike("entries", one["entries"], len(chosen))


def _claimed(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        group, entries = state.group(*_of(one)), state.streams[one["stream"]].entries
        assert group is not None
        mark = mark_of(state, _of(one), one["to"])
        bound = None if mark is None else (mark.id.ms, mark.id.seq)
        source = "" if "--released" in words else _option(words, "--from")
        plain = tuple(word for word in words if word != "--limit")  # the limit counts what may be handed over
        chosen = [key for key in _chosen(state, group, plain, [source or ""]) if bound is None or key <= bound]
        limit = _option(words, "--limit")
        chosen = chosen[: None if limit is None else int(limit)]
        yield from _unlike("entries", one["entries"], sum(key in entries for key in chosen))
        yield from _unlike("gone", one["gone"], sum(key not in entries for key in chosen))
        above = [key for key in _chosen(state, group, plain, [source or ""]) if bound is not None and key > bound]
        yield from _unlike("above", one["above"], len(above))


def _replayed(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        group = state.group(*_of(one))
        assert group is not None
        entries = [k for k in state.streams[one["stream"]].entries if key_of(one["after"]) < k <= key_of(one["last"])]
        held = sum(key in group.pending and bool(group.pending[key].consumer) for key in entries)
        yield from _unlike("entries", one["entries"], len(entries) - held)
        yield from _unlike("held", one["held"], held)
        if re.fullmatch(r"\d+-\d+|latest", to := _option(words, "--to") or ""):
            stream = state.streams[one["stream"]]
            end = stream.last if to == "latest" else key_of(to)
            asked = [key for key in stream.entries if key_of(one["after"]) < key <= end]
            yield from _unlike("entries of the range", one["entries"] + one["held"], len(asked))
        if any(key > group.position for key in entries):
            yield f"{one} hands over what the group has not delivered"
        mark = mark_of(state, _of(one), one["query"])
        if mark is None or any(key > (mark.id.ms, mark.id.seq) for key in entries):
            yield f"{one} hands over what the query has not committed ({mark})"


def _names(groups: Iterable[str]) -> list[str]:
    """Return the groups without scratch groups of queries with noAck that were killed."""
    return sorted(name for name in groups if not name.startswith(PROBE))


def _needs(life: Life, state: State, place: tuple[str, str], key: Key) -> bool:
    """Whether a group needs an entry. A scratch group needs none."""
    if not _names([place[1]]):
        return False
    group = state.group(*place)
    assert group is not None
    marks = [mark_of(state, place, query.name) for query in life.queries]
    bare = [(mark.id.ms, mark.id.seq) for mark in marks if mark is not None and not mark.has_pending_list]
    return key > min([group.position, *bare]) or key in group.pending


def _trimmed(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        entries = state.streams[one["stream"]].entries
        groups = state.streams[one["stream"]].groups
        needed = [key for key in entries if any(_needs(life, state, (one["stream"], group), key) for group in groups)]
        lowest = None
        if life.version == "7.0":  # it has no XTRIM ACKED, and what is pending need not be in the stream
            lowest = min([*needed, *(key for group in _names(groups) for key in groups[group].pending)], default=None)
        free = [key for key in entries if key not in needed and (lowest is None or key < lowest)]
        if one["acknowledged"] is not None:
            yield from _unlike(f"acknowledged of {one['stream']}", one["acknowledged"], len(free))


def _pruned(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    idle = _idle(words)
    for one in said["streams"]:
        group = state.group(*_of(one))
        assert group is not None
        if not group.consumers or any(state.now - seen < idle for seen in group.consumers.values()):
            yield f"{_of(one)} is said to be abandoned, and was used"
        old = [key for key in state.streams[one["stream"]].entries if key > group.position]
        waits = [p for p in group.pending.values() if p.consumer and state.now - p.delivered >= idle]
        released = [p for p in group.pending.values() if not p.consumer]
        if not waits and not released and not (old and state.now - old[0][0] >= idle):
            yield f"{_of(one)} is said to be abandoned, and nothing waits in it"
        if any(_holds_lease(state, _of(one), query, run.running) for query in run.running):
            yield f"{_of(one)} is said to be abandoned, and its query runs"
        marks = [mark_of(state, _of(one), query.name) for query in life.queries]
        if any(mark is not None and not mark.has_pending_list for mark in marks):
            yield f"{_of(one)} is said to be abandoned, and a query with noAck has committed to it"


def _idle_consumers(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said["streams"]:
        group = state.group(*_of(one))
        assert group is not None
        for name in one["consumers"]:
            held = [key for key, p in group.pending.items() if p.consumer == name]
            if held or state.now - group.consumers[name] < _idle(words):
                yield f"consumer {name} of {_of(one)} is said to be idle and without entries: {held}"


def _lags(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said:
        group = state.group(one["stream"], one["group"])
        if group is None:
            yield f"lag names {one['stream']} {one['group']}, which is not there"
            continue
        true = _above(state, one["stream"], group.position)
        if one["lag"] is not None and not one["at_least"]:
            yield from _unlike_lag(life, state, _of(one), one["lag"])
        elif one["lag"] is not None and one["lag"] > true:
            yield f"lag of {_of(one)} is said to be at least {one['lag']}, and is {true}"
        yield from _unlike(f"pending of {_of(one)}", one["pending"], len(group.pending))
        released = sum(not p.consumer for p in group.pending.values())
        if one["released"] is not None:
            yield from _unlike(f"released of {_of(one)}", one["released"], released)


def _views(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said:
        group = state.group(*_of(one))
        if group is None:
            yield f"{_of(one)} is not there"
            continue
        yield from _unlike(f"pending of {_of(one)}", one["pending"], len(group.pending))
        if one["lag"] is not None:
            yield from _unlike_lag(life, state, _of(one), one["lag"])


def _places_of_entry(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    for one in said:
        name, key = one["stream"], key_of(one["id"])
        stream = state.streams[name]
        yield from _unlike("verdict", one["verdict"].startswith("in the stream"), key in stream.entries)
        letters = {
            text_of(at)
            for dead in (DEAD, f"{DEAD}:parked")
            for at, fields in (state.all_streams[dead].entries.items() if dead in state.all_streams else ())
            if (fields.get("dl.stream"), fields.get("dl.id")) == (name, one["id"])
        }
        told = {line["id"] for line in one["lines"] if line["event"] == "dead" and line["exact"]}
        yield from _unlike(f"dead letters of {one['id']}", told, letters)
        if "--sent-to" in words and (sent := [line for line in one["lines"] if line["event"] == "sent back"]):
            marks = {at: fields.get("dl.redriven", "") for at, fields in state.streams[REPAIRED].entries.items()}
            named = (f" {one['id']}", f" {name}/{one['id']}", f" {name}/{one['id']} ")
            true = {text_of(at) for at, mark in marks.items() if mark.endswith(named[:2]) or named[2] in mark}
            life.count(f"sent to another stream: {len(true)}")
            said_there = {line["id"] for line in sent if line.get("stream") == REPAIRED}
            yield from _unlike(f"what {name} {one['id']} was sent back as", said_there, true)
        for line in one["lines"]:
            if why := _untrue(life, state, (name, key), line, letters):
                yield f"entry {one['id']} of {name} is said to be {line['event']}: {line}; {why}"


def _untrue(life: Life, state: State, entry: tuple[str, Key], line: Any, letters: set[str]) -> object:
    """Return what contradicts a line of a journey; nothing if all is well."""
    (name, key), event = entry, line["event"]
    stream = state.streams[name]
    if event == "never added":
        return entry in life.known and "it was"
    if event in ("deleted", "trimmed") and line["exact"]:
        return life.removed.get(entry, event) != event and life.removed[entry]
    if event == "sent back" and "id" in line and line["exact"]:
        return (line["stream"], key_of(line["id"])) not in life.known and "no such entry"
    if (group := stream.groups.get(line["group"] or "")) is None or not line["exact"]:
        return None
    if event == "pending":
        one = group.pending.get(key)
        true = one and (one.consumer or None, one.deliveries)
        return true != (line["consumer"], line["deliveries"]) and (true or "not pending")
    if event == "not delivered":
        before = sum(group.position < other < key for other in stream.entries)
        return (key <= group.position or before != line["before"]) and (group.position, before)
    if event == "never" and "begins_above" not in line:
        return (key <= group.position or key in stream.entries) and group.position
    if event == "delivered":
        return (key in group.pending or not letters) and (group.pending, letters)
    return event == "never" and any(
        (name, text_of(key)) in rows
        for query in life.queries
        if query.group == line["group"] and query.name in line["text"]
        for rows in query.rows.values()
    )


def _copied(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    if said["refused"]:
        return
    fresh, already = _to_copy(life, run.before, words)
    yield from _unlike("sent", said["sent"], len(fresh))
    yield from _unlike("already", said["already"], len(already))
    every = [text_of(key) for key in (*already, *fresh)]
    facts = [said["source"][name] for name in ("entries", "first", "last")]
    yield from _unlike("the source", facts, [len(every), every[0] if every else None, every[-1] if every else None])
    streams = run.before.all_streams
    target, of_source = streams.get(target_of(words)), streams[words[1]].groups if words[1] in streams else {}
    if "--groups" in words:
        yield from _unlike("groups", [one["group"] for one in said["groups"]], _names(of_source))
    for one in said["groups"]:
        group, existing = of_source[one["group"]], target.groups.get(one["group"]) if target is not None else None
        yield from _unlike("position", one["position"], text_of(group.position))
        yield from _unlike("pending", one["pending"], len(group.pending))
        yield from _unlike("new", one["state"] == "new", existing is None)
        if existing and one["state"] == "moved" and (existing.consumers or existing.pending):
            yield f"{one} is moved, and was used"
        stays = existing.position if existing and one["state"] == "left" else group.position
        yield from _unlike("target_position", one["target_position"], text_of(stays))


def _to_copy(life: Life, state: State, words: tuple[str, ...]) -> tuple[list[Key], list[Key]]:
    """Return (entries that a copy or an import appends, entries that the target has)."""
    source = life.files[words[1]] if words[1] in life.files else state.streams[words[1]].entries
    first, last = (_option(words[3:], name) for name in ("--from", "--to"))
    chosen = [
        key
        for key in sorted(source)
        if (first is None or key >= key_of(first)) and (last is None or key <= key_of(last))
    ]
    chosen = chosen[-int(_option(words, "--last") or len(chosen) or 1) :]
    target = state.all_streams.get(target_of(words))
    reached = NEVER if target is None else target.last
    fresh = [key for key in chosen if key > reached]
    return fresh[: int(_option(words, "--limit") or len(fresh))], [key for key in chosen if key <= reached]


def _exported(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    written = life.files[words[2]]
    source = sorted(run.before.streams[words[1]].entries)
    source = source[-int(_option(words, "--last") or len(source) or 1) :]
    yield from _unlike("the file", [*written], source[: int(_option(words, "--limit") or len(source))])


def note_file(life: Life, run: Run) -> None:
    """Note what a file has after an export, which says how much that is; a killed one leaves the file as it was."""
    (_, stream, name, *_), file = run.answer.words, Path(run.answer.words[2])
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    written = {key_of(line["id"]): line["fields"] for line in lines}
    if run.answer.said is None and written != life.files.get(name, {}):
        life.fault(f"export: it has not come to its end, and the file is another one: {written}")
    elif run.answer.said is not None:
        for text in _unlike("entries", run.answer.said["entries"], len(written)):
            life.fault(f"export: {text}")
    if others := {key for key, fields in written.items() if fields != life.known.get((stream, key))}:
        life.fault(f"export: {others} are not those of {stream}")
    if file.exists():
        life.files[name] = written


def _examined(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    state = run.before
    lengths = [len(stream.entries) for stream in state.streams.values()]
    for text in (finding["said"] for finding in said["findings"]):
        if found := re.match(r"(\d+) in this database; the (\d+ )?largest ha(?:s|ve) (\w+)(?: to (\d+))?", text):
            low = int(found[3]) if found[3].isdigit() else 0
            high = int(found[4] or low)
            true = [sum(low <= length <= high for length in lengths), max(lengths, default=0) <= high, len(lengths)]
            yield from _unlike(text, [int(found[2] or 1), True, int(found[1])], true)
        elif found := re.match(r"stream '(.+)': (\d+) entries of group '(.+)' were released", text):
            group = state.group(found[1], found[3])
            yield from _unlike(
                text, int(found[2]), sum(not p.consumer for p in group.pending.values()) if group else None
            )
        elif found := re.match(r"group '(.+)' of stream '(.+)' holds (\d+) entr", text):
            place = (found[2], found[1])
            group = state.group(*place)
            if group is None or any(_holds_lease(state, place, query, run.running) for query in run.running):
                yield f"{text}: its query runs, or there is no such group"
            elif any(state.now - seen < ACTIVE_MS for seen in group.consumers.values()):
                yield f"{text}: it was used"
            elif int(found[3]) > len(state.streams[place[0]].entries):
                yield f"{text}: the stream has {len(state.streams[place[0]].entries)} entries"


def _redriven(life: Life, run: Segment, said: Any, words: tuple[str, ...]) -> Iterable[str]:
    for stream, groups in said["groups"].items():
        there = run.before.streams[stream].groups if stream in run.before.streams else ()
        yield from _unlike(f"groups of {stream}", groups, _names(there))


SAID: Mapping[str, Callable[[Life, Segment, Any, tuple[str, ...]], Iterable[str]]] = {
    "seek": _sought,
    "create": _created,
    "delete": _deleted,
    "claim": _claimed,
    "ack": _acknowledged,
    "release": _acknowledged,
    "prune": _pruned,
    "prune consumers": _idle_consumers,
    "replay": _replayed,
    "trim": _trimmed,
    "lag": _lags,
    "list": _views,
    "where": _places_of_entry,
    "copy": _copied,
    "redrive": _redriven,
    "doctor": _examined,
    "export": _exported,
    "import": _copied,
}


# -- what a change says, beside what it has changed --------------------------------------------------------------------


def _sum(run: Run, kind: str, place: tuple[str, str]) -> int:
    return sum(len(getattr(segment.change, kind).get(place, ())) for segment in run.segments)


def _has_sought(life: Life, run: Run, said: Any) -> Iterable[str]:
    for one in said["streams"]:
        moved = [segment.change.moved[_of(one)] for segment in run.segments if _of(one) in segment.change.moved]
        if one["position_before"] != one["position"]:
            pair = (key_of(one["position_before"]), key_of(one["position"]))
            yield from _unlike("the move", pair, moved[-1] if moved else None)
        group = run.segments[-1].after.group(*_of(one))
        true = _above(run.segments[-1].after, one["stream"], key_of(one["position"]))
        if run.was_alone and group is not None and group.lag is not None:
            yield from _unlike("the server's lag", group.lag, true)
        first, last = run.segments[0].before, run.segments[-1].after
        known = first.group(*_of(one))
        for query in known.consumers if run.was_alone and known is not None else ():
            mark = mark_of(last, _of(one), query)
            if mark is not None and (mark.id.ms, mark.id.seq) != key_of(one["position"]):
                yield f"the mark of {query} does not say where {_of(one)} was set: {mark}"


def _has_claimed(life: Life, run: Run, said: Any) -> Iterable[str]:
    idle = _idle(run.answer.words)
    for one in said["streams"]:
        handed = [
            (segment, key, *pair)
            for segment in run.segments
            for key, pair in segment.change.handed.get(_of(one), {}).items()
        ]
        # Beside another actor: what was released since it was listed is claimed, and released again.
        taken = set() if run.was_alone else {key for _, key, was, _ in handed if not was.consumer}
        back = taken & {key for _, key, _, now in handed if not now.consumer}
        yield from _unlike("entries", one["entries"], sum(key not in back for _, key, _, _ in handed))
        for segment, key, was, now in handed:
            if key not in back:
                if was.consumer != (one["source"] if "--released" not in run.answer.words else ""):
                    yield f"{text_of(key)} was taken from {was.consumer}"
                if now.consumer != one["to"]:
                    yield f"{text_of(key)} was given to {now.consumer}"
                if was.consumer and segment.after.now - was.delivered < idle:
                    yield f"{text_of(key)} was claimed {segment.after.now - was.delivered} ms after its delivery"
                if now.deliveries != was.deliveries:
                    yield f"{text_of(key)} counts a delivery more"


def _of_whom(life: Life, run: Run, said: Any) -> Iterable[str]:
    """What ack and release have taken was that of the named consumer."""
    named = _option(run.answer.words, "--consumer")
    for segment in run.segments if named is not None else ():
        changed = [one for gone in segment.change.gone.values() for one in gone.items()]
        changed += [(key, one) for handed in segment.change.handed.values() for key, (one, _) in handed.items()]
        for key, one in changed:
            # A claim without an idle time may come between the command's own claim and its change.
            was_released = not one.consumer and not run.was_alone
            if one.consumer != named and not was_released and segment.after.now - one.delivered > _OWN_CLAIM:
                yield f"{text_of(key)} was taken from {one.consumer}"


def _has_acknowledged(life: Life, run: Run, said: Any) -> Iterable[str]:
    yield from _of_whom(life, run, said)
    for one in said["streams"]:  # release hands entries to nobody
        if "mode" in one and not run.was_alone:
            continue  # XCLAIM takes also what another release has just made nobody's, and this one releases it again
        yield from _unlike("entries", one["entries"], _sum(run, "handed" if "mode" in one else "gone", _of(one)))


def _has_deleted(life: Life, run: Run, said: Any) -> Iterable[str]:
    after = run.segments[-1].after
    for one in said["streams"]:
        if "--consumer" in run.answer.words:
            continue
        is_destroyed = any(_of(one) in segment.change.destroyed for segment in run.segments)
        if after.group(*_of(one)) is not None and not is_destroyed:  # else a query has created it again
            yield f"{_of(one)} is still there"
        left = [k for k in after.keys if f"{{{one['stream']}}}:{one['group']}" in k and not k.startswith(_OF_LEASES)]
        if run.was_alone and [key for key in left if not key.startswith("rstream:retry")]:
            yield f"keys of {_of(one)} are left: {left}"


def _has_replayed(life: Life, run: Run, said: Any) -> Iterable[str]:
    for one in said["streams"]:
        yield from _unlike("entries", one["entries"], _sum(run, "pending", _of(one)) + _sum(run, "handed", _of(one)))


def _has_removed(life: Life, run: Run, said: Any) -> Iterable[str]:
    for stream in sorted({one["stream"] for one in said["streams"]}):
        reported = sum(one["removed"] for one in said["streams"] if one["stream"] == stream)
        removed = sum(len(segment.change.removed.get(stream, ())) for segment in run.segments)
        yield from _unlike(f"removed of {stream}", reported, removed)


def _has_trimmed(life: Life, run: Run, said: Any) -> Iterable[str]:
    yield from _has_removed(life, run, said)
    forgotten = {(one["stream"], one["group"]) for one in said["streams"] if "group" in one}
    for segment in run.segments:
        for stream, keys in segment.change.removed.items():
            for group in segment.before.streams[stream].groups:
                needed = [key for key in keys if _needs(life, segment.before, (stream, group), key)]
                if needed and (stream, group) not in forgotten:
                    yield f"{list(map(text_of, needed))} of {stream} are removed, and {group} needs them"


def _has_copied(life: Life, run: Run, said: Any) -> Iterable[str]:
    words, after = run.answer.words, run.segments[-1].after
    target = target_of(words)
    added = [key for segment in run.segments for key in segment.change.added.get(target, ())]
    if len(added) > said["sent"]:  # what another copy has appended meanwhile counts, too
        yield f"sent is said to be {said['sent']}, and is {len(added)}"
    if run.was_alone:
        yield from _unlike("sent", said["sent"], len(added))
        yield from _unlike("the copied entries", added, _to_copy(life, run.segments[0].before, words)[0])
        for one in said["groups"]:
            group = after.all_streams[target].groups.get(one["group"])
            yield from _unlike(f"position of {one['group']}", one["target_position"], group and text_of(group.position))


def _has_added(life: Life, run: Run, said: Any) -> Iterable[str]:
    stream = said["stream"]
    added = [key for segment in run.segments for key in segment.change.added.get(stream, ())]
    yield from _unlike("added", said["added"], len(added))
    yield from _unlike("last", said["last"], text_of(added[-1]) if added else None)


def _has_redriven(life: Life, run: Run, said: Any) -> Iterable[str]:
    removed = sum(len(segment.change.removed.get(DEAD, ())) for segment in run.segments)
    added = sum(len(ids) for segment in run.segments for ids in segment.change.added.values())
    yield from _unlike("moved and parked", said["moved"] + said["parked"], removed + said["vanished"])
    if not said["goes_on"]:  # else the killed run may have added it
        yield from _unlike("added", added, said["moved"] + said["parked"])


def _has_purged(life: Life, run: Run, said: Any) -> Iterable[str]:
    removed = sum(len(segment.change.removed.get(DEAD, ())) for segment in run.segments)
    yield from _unlike("deleted", said["deleted"], removed)


DONE: Mapping[str, Callable[[Life, Run, Any], Iterable[str]]] = {
    "seek": _has_sought,
    "claim": _has_claimed,
    "ack": _has_acknowledged,
    "release": _has_acknowledged,
    "delete": _has_deleted,
    "prune": _has_deleted,
    "prune hold": _has_trimmed,
    "replay": _has_replayed,
    "trim": _has_trimmed,
    "copy": _has_copied,
    "import": _has_copied,
    "add": _has_added,
    "redrive": _has_redriven,
    "purge": _has_purged,
}


# -- the end -----------------------------------------------------------------------------------------------------------


def at_the_end(life: Life) -> None:
    """What is still there, and no operator or client has touched, must be in the sinks of its group's queries."""
    state = life.state()
    for place in {(stream, query.group) for query in life.queries for stream in query.streams}:
        if place in life.touched or place in life.shared or place[0] not in state.streams:
            continue
        queries = [query for query in life.queries if query.group == place[1] and place[0] in query.streams]
        if any(query.error is not None for query in queries):
            continue
        written = {key_of(i) for query in queries for rows in query.rows.values() for s, i in rows if s == place[0]}
        dead = {
            key_of(fields["dl.id"])
            for fields in (state.streams[DEAD].entries.values() if DEAD in state.streams else ())
            if fields.get("dl.stream") == place[0]
        }
        lost = [key for key in state.streams[place[0]].entries if key not in written and key not in dead]
        if any("mode" not in query.options for query in queries):
            lost = [key for key in lost if key in written or _fits(state, place[0], key)]
        else:
            lost = [key for key in lost if _fits(state, place[0], key)]  # letters are redriven and purged
        if lost:
            life.fault(f"the end: {[text_of(key) for key in lost]} of {place} are in no sink")


def _fits(state: State, stream: str, key: Key) -> bool:
    return state.streams[stream].entries[key].get("n", "").isdigit()
