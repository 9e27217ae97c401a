"""Outcome of a query whose streams another client has changed: it continues, or it stops with a named error.

If it stops, it is repaired as the error says, and continues with failOnDataLoss=false. In the end every entry is in the
sink once, or its loss is reported: by an error, and by the count in the progress.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import replace

import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tools.chaos.accounts import Aftermath, Intervention, settle
from tools.chaos.history import Place
from tools.chaos.job import error_of
from tools.chaos.query import Query
from tools.chaos.scene import Outcome, Scene

LENIENT = {"failOnDataLoss": "false"}
SECONDS = 20.0  # in which a running query must read all that it can
_RUNS = 4  # with a repair between them, before the test fails
_LEDGER = re.compile(r'HSET (rstream:sink:\S+) "" (\d+)')
_BELOW = re.compile(r"stream '([^']+)' is at \S+, below the checkpoint's (\d+-\d+)")


def run_to_end(scene: Scene, query: Query, running: StreamingQuery | None, foreign: Collection[str] = ()) -> Aftermath:
    """Run the query, with repairs, until it has read all entries."""
    after = Aftermath(restarted=running is None)
    query = replace(query, fault=None)
    if running is not None:
        _let_run(scene, query, running, foreign)
        _note(scene, after, running)
    for _ in range(_RUNS):
        if after.errors:
            after.restarted = True
            query = replace(query, options={**query.options, **LENIENT})
            query = _repair(scene, query, after.errors[-1])
        error, restarted = scene.run(query)
        _note(scene, after, restarted)
        if not error:
            after.ended = True
        if not error or after.errors[-2:] == [error, error]:
            return after
    return after


def judge(
    scene: Scene, query: Query, after: Aftermath, intervention: Intervention, before: Collection[Place] = ()
) -> Outcome:
    """Judge the query (chaos.accounts). before: entries that it must not read."""
    expected = {
        "either": intervention.either,
        "taken": intervention.taken,
        "unordered": intervention.unordered,
        "removed": intervention.removed | set(before),
    }
    outcome = scene.outcome(query, intervention.foreign, **expected)
    settle(outcome, query.options.get("failOnDataLoss") != "false", after, intervention, before)
    return outcome


def _note(scene: Scene, after: Aftermath, ended: StreamingQuery) -> None:
    error = error_of(ended)
    if error:
        after.errors.append(error)
    after.counted += sum(scene.reported(ended, "lost").values()) if not error else 0


def _let_run(scene: Scene, query: Query, running: StreamingQuery, foreign: Collection[str]) -> None:
    """Wait until the query has ended, or has read all entries; then stop it."""
    streams = {entry.stream for entry in scene.producer.added}
    deadline = time.monotonic() + SECONDS
    while running.isActive and time.monotonic() < deadline:
        if all(is_quiet(scene, query, stream, foreign) for stream in streams):
            break
        time.sleep(0.02)
    try:
        if running.isActive:
            running.processAllAvailable()
    except StreamingQueryException:
        pass  # _note reads the error from the query
    running.stop()


def is_quiet(scene: Scene, query: Query, stream: str, foreign: Collection[str] = ()) -> bool:
    """Whether the group has delivered all entries of a stream, and none is pending except for foreign consumers."""
    try:
        group = next((g for g in scene.client.xinfo_groups(stream) if g["name"] == query.group), None)
        if group is None or scene.client.xrange(stream, f"({group['last-delivered-id']}", "+", count=1):
            return False
        consumers = scene.client.xinfo_consumers(stream, query.group)
    except redis.ResponseError:  # the stream or the group does not exist
        return False
    return all(consumer["pending"] == 0 for consumer in consumers if consumer["name"] not in foreign)


def _repair(scene: Scene, query: Query, error: str) -> Query:
    """Do what the error tells an operator to do. Return the query to start."""
    for stream, position in _BELOW.findall(error):
        scene.client.xgroup_setid(stream, query.group, position)
    for record, batch in _LEDGER.findall(error):
        with redis.Redis.from_url(query.out_address) as client:
            client.hset(record, "", batch)
    if "without noAck" in error:
        return replace(query, options={name: value for name, value in query.options.items() if name != "noAck"})
    return query
