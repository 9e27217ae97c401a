"""What is on the server, as one value, and what differs between two of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.commit_mark import Mark, committed_key

Key = tuple[int, int]


def key_of(entry_id: str) -> Key:
    """Return an ID as numbers."""
    parsed = StreamId.parse(entry_id)
    return parsed.ms, parsed.seq


@dataclass(frozen=True)
class Pending:
    """An entry of a pending list."""

    consumer: str  # empty: it was released
    delivered: int  # when, Unix milliseconds
    deliveries: int


@dataclass(frozen=True)
class Group:
    """A consumer group."""

    position: Key
    read: int | None  # entries-read
    lag: int | None  # as the server says
    pending: Mapping[Key, Pending]
    consumers: Mapping[str, int]  # when each was last seen, Unix milliseconds


@dataclass(frozen=True)
class Stream:
    """A stream."""

    entries: Mapping[Key, Mapping[str, str]]
    last: Key  # that it ever had
    groups: Mapping[str, Group]


@dataclass(frozen=True)
class State:
    """The server."""

    now: int  # Unix milliseconds
    streams: Mapping[str, Stream]
    keys: Mapping[str, Any]  # all others, with their values
    elsewhere: Mapping[str, Stream] = field(default_factory=dict)  # streams of the second server

    @property
    def all_streams(self) -> Mapping[str, Stream]:
        """The streams of both servers; those of the second one with @ before their names."""
        return {**self.streams, **{f"@{name}": stream for name, stream in self.elsewhere.items()}}

    def group(self, stream: str, group: str) -> Group | None:
        """Return a group; None if there is no such group or stream."""
        return self.streams[stream].groups.get(group) if stream in self.streams else None


def look(client: Any, now: int, other: Any = None) -> State:
    """Read all that is on the server, and on a second one, by clients of redis-py that decode replies."""
    streams: dict[str, Stream] = {}
    others: dict[str, Any] = {}
    for name in sorted(client.keys("*")):
        kind = client.type(name)
        if kind == "stream":
            streams[name] = _stream(client, name, now)
        elif kind == "hash":
            others[name] = dict(sorted(client.hgetall(name).items()))
        elif kind == "set":
            others[name] = sorted(client.smembers(name))
        elif kind == "zset":
            others[name] = client.zrange(name, 0, -1, withscores=True)
        else:
            others[name] = client.get(name)
    return State(now, streams, others, {} if other is None else look(other, now).streams)


def _stream(client: Any, name: str, now: int) -> Stream:
    entries = {key_of(entry_id): fields for entry_id, fields in client.xrange(name)}
    groups = {}
    for one in client.xinfo_groups(name):
        pending = {}
        for row in client.xpending_range(name, one["name"], "-", "+", 10_000) if one["pending"] else ():
            idle = row["time_since_delivered"]
            delivered = 0 if row["consumer"] in (None, "") else now - idle
            pending[key_of(row["message_id"])] = Pending(row["consumer"] or "", delivered, row["times_delivered"])
        consumers = {row["name"]: now - row["idle"] for row in client.xinfo_consumers(name, one["name"])}
        groups[one["name"]] = Group(
            key_of(one["last-delivered-id"]), one["entries-read"], one["lag"], pending, consumers
        )
    return Stream(entries, key_of(client.xinfo_stream(name)["last-generated-id"]), groups)


@dataclass
class Change:
    """What has changed between two states. Places are (stream, group)."""

    removed: dict[str, list[Key]] = field(default_factory=dict)  # entries, by stream
    added: dict[str, list[Key]] = field(default_factory=dict)
    made: list[tuple[str, str]] = field(default_factory=list)  # groups
    destroyed: list[tuple[str, str]] = field(default_factory=list)
    moved: dict[tuple[str, str], tuple[Key, Key]] = field(default_factory=dict)  # positions
    gone: dict[tuple[str, str], dict[Key, Pending]] = field(default_factory=dict)  # not pending any more
    handed: dict[tuple[str, str], dict[Key, tuple[Pending, Pending]]] = field(default_factory=dict)  # another consumer
    pending: dict[tuple[str, str], dict[Key, Pending]] = field(default_factory=dict)  # newly
    left: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # consumers that were deleted
    keys: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # other keys: value before and after, None: none

    @property
    def kinds(self) -> set[str]:
        """Return which kinds of changes there are; an expired or renewed key of a lease is none."""
        return {name for name, value in vars(self).items() if value}


def change(before: State, after: State) -> Change:
    """Return what differs."""
    done = Change()
    earlier, later = before.all_streams, after.all_streams
    for name in sorted(earlier.keys() | later.keys()):
        was, now = earlier.get(name, _NONE), later.get(name, _NONE)
        done.removed |= _if_any(name, sorted(was.entries.keys() - now.entries.keys()))
        done.added |= _if_any(name, sorted(now.entries.keys() - was.entries.keys()))
        done.made += [(name, group) for group in sorted(now.groups.keys() - was.groups.keys())]
        done.destroyed += [(name, group) for group in sorted(was.groups.keys() - now.groups.keys())]
        for group in sorted(was.groups.keys() & now.groups.keys()):
            _change_of_group(done, (name, group), was.groups[group], now.groups[group])
    for key in before.keys.keys() | after.keys.keys():
        values = before.keys.get(key), after.keys.get(key)
        if values[0] != values[1]:
            done.keys[key] = values
    return done


def _change_of_group(done: Change, place: tuple[str, str], was: Group, now: Group) -> None:
    if was.position != now.position:
        done.moved[place] = (was.position, now.position)
    done.gone |= _if_any(place, {key: one for key, one in was.pending.items() if key not in now.pending})
    done.pending |= _if_any(place, {key: one for key, one in now.pending.items() if key not in was.pending})
    both = {key: (was.pending[key], now.pending[key]) for key in was.pending.keys() & now.pending.keys()}
    done.handed |= _if_any(place, {key: pair for key, pair in both.items() if pair[0].consumer != pair[1].consumer})
    done.left |= _if_any(place, sorted(was.consumers.keys() - now.consumers.keys()))


def _if_any(place: Any, found: Any) -> dict[Any, Any]:
    return {place: found} if found else {}


_NONE = Stream({}, (0, 0), {})


def all_places(state: State) -> Iterator[tuple[str, str]]:
    """Yield (stream, group) of each group."""
    for name, stream in state.streams.items():
        for group in stream.groups:
            yield name, group


def mark_of(state: State, place: tuple[str, str], query: str) -> Mark | None:
    """Return the commit mark of a query."""
    value = state.keys.get(committed_key(*place, query).decode())
    return None if value is None else Mark.parse(str(value).encode())
