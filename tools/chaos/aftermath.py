"""What becomes of a query whose streams somebody has changed: it goes on, or it stops with a named error.

Where it stops, it is put right as the error says and goes on with failOnDataLoss=false. In the end every entry is in
the sink once, or its loss was said: by an error, and by the number that the progress tells.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import replace

import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.accounts import Aftermath, Done, settle
from tools.chaos.history import Place, id_key
from tools.chaos.job import error_of
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene

LENIENT = {"failOnDataLoss": "false"}
SECONDS = 20.0  # until a query that runs must have read all that it can
_RUNS = 4  # that are put right, before the query counts as lost
_BELOW = re.compile(r"stream '([^']+)' is at \S+, below the checkpoint's (\d+-\d+)")


def live_on(scene: Scene, query: Query, running: StreamingQuery | None, foreign: Collection[str] = ()) -> Aftermath:
    """Let the query run to the end of what is there, and once more to be sure, whatever it takes."""
    after = Aftermath(restarted=running is None)
    query = replace(query, fault=None)
    if running is not None:
        _let_run(scene, query, running, foreign)
        _note(scene, after, running)
    for _ in range(_RUNS):
        if after.errors:
            after.restarted = True
            query = replace(query, options={**query.options, **LENIENT})
            query = _put_right(scene, query, after.errors[-1])
        if query.options.get("delivery") == "at-most-once":
            after.given_up |= _in_hand(scene, query)
        error, again = scene.run(query)
        _note(scene, after, again)
        if not error:
            after.ended = True
        if not error or after.errors[-2:] == [error, error]:
            return after
    return after


def judge(scene: Scene, query: Query, after: Aftermath, done: Done, before: Collection[Place] = ()) -> Outcome:
    """What became of the query (chaos.accounts). before: entries that it was never to read."""
    known = {
        "either": done.either | after.given_up,
        "taken": done.taken,
        "unordered": done.unordered,
        "gone": done.gone | set(before),
    }
    outcome = scene.outcome(query, done.foreign, **known)
    settle(outcome, query.options.get("failOnDataLoss") != "false", after, done, before)
    return outcome


def _note(scene: Scene, after: Aftermath, ended: StreamingQuery) -> None:
    error = error_of(ended)
    if error:
        after.errors.append(error)
    after.counted += sum(scene.told(ended, "lost").values()) if not error else 0


def _let_run(scene: Scene, query: Query, running: StreamingQuery, foreign: Collection[str]) -> None:
    """Until it has ended by itself, or has read all; then it is stopped."""
    streams = {one.stream for one in scene.producer.added}
    deadline = time.monotonic() + SECONDS
    while running.isActive and time.monotonic() < deadline:
        if all(is_quiet(scene, query, stream, foreign) for stream in streams):
            break
        time.sleep(0.02)
    try:
        if running.isActive:
            running.processAllAvailable()
    except StreamingQueryException:
        pass  # it is read from the query itself
    running.stop()


def is_quiet(scene: Scene, query: Query, stream: str, foreign: Collection[str] = ()) -> bool:
    """Whether the group has nothing to deliver on a stream, and nothing is pending but for foreign consumers."""
    try:
        group = next((g for g in scene.client.xinfo_groups(stream) if g["name"] == query.group), None)
        if group is None or scene.client.xrange(stream, f"({group['last-delivered-id']}", "+", count=1):
            return False
        consumers = scene.client.xinfo_consumers(stream, query.group)
    except redis.ResponseError:  # the stream or the group is gone
        return False
    return all(one["pending"] == 0 for one in consumers if one["name"] not in foreign)


def _in_hand(scene: Scene, query: Query) -> set[Place]:
    """What the group has delivered above the last committed batch."""
    found = set()
    for stream in {one.stream for one in scene.producer.added}:
        committed = query.offset(query.committed())["streams"] if query.committed() >= 0 else {}
        group = next((g for g in scene.client.xinfo_groups(stream) if g["name"] == query.group), None)
        if group is not None:
            after, last = id_key(committed.get(stream, "0-0")), id_key(group["last-delivered-id"])
            added = [one for one in scene.producer.added if one.stream == stream and one.id is not None]
            found |= {(stream, one.id) for one in added if one.id and after < id_key(one.id) <= last}
    return found


def _put_right(scene: Scene, query: Query, error: str) -> Query:
    """Do what the error says that an operator is to do; the query to start."""
    for stream, position in _BELOW.findall(error):
        scene.client.xgroup_setid(stream, query.group, position)
    if "without noAck" in error:
        return replace(query, options={name: value for name, value in query.options.items() if name != "noAck"})
    return query
