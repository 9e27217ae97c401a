"""Options of the source that plans draw, all together. What may stand together is asked of the product's own checks.

2,000 plans have each pair. `scripts/simulate --pairs` prints the missing pairs, and the options that no plan has.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Collection, Mapping

from spark_streams.base.given_text import duration
from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.options.source_options import SourceOptions

STREAMS = ("s:0", "s:1", "s:2", "s:3")
PATTERN, EXCLUDED = "s:*", "s:3"
DEAD = "dead"
CLAIM_IDLE = "30m"
ID = "id"  # of startingOffsets and startingTimestamp: that of an entry which exists before the query (run.py)
ARCHIVE = "/archive"  # in place of the folder of a run
_REQUIRED = {"url": "redis://simulated:1/0", "group": "g"}

# Values that plans draw, beside the default.
VALUES: Mapping[str, tuple[str, ...]] = {
    "streams": (",".join(STREAMS),),
    "streamsPattern": (PATTERN,),
    "streamsExcept": (EXCLUDED,),
    "startingOffsets": ("earliest", "earliest", "latest", ID),
    "startingTimestamp": (ID,),
    "onNewCheckpoint": ("resume", "restart", "resume"),
    "archivePath": (ARCHIVE,),
    "createStreams": ("true", "false"),
    "maxEntriesPerTrigger": ("1", "2", "4", "7", "15", json.dumps({"*": 3}), json.dumps({"*": 7})),
    "maxBytesPerTrigger": ("1", "20", "60", "300"),
    "targetBatchTime": ("1s", "10s"),
    "minEntriesPerTrigger": ("1", "3"),
    "maxTriggerDelay": ("1ms", "1s"),
    "entriesPerPartition": ("1", "2", "5", "9"),
    "minPartitions": ("2", "5"),
    "ordered": ("true",),
    "onCommit": ("trim", "delete"),
    "noAck": ("true",),
    "failOnDataLoss": ("false",),
    "mode": ("DEADLETTER", "DROPMALFORMED", "FAILFAST"),
    "claimIdle": (CLAIM_IDLE,),
    "maxDeliveries": ("1", "2", "3"),
    "deadLetterStream": (DEAD,),
    "retryDelay": ("1ms", "1ms,1s"),
}
# Options that no plan has, and why.
LEFT_OUT: Mapping[str, str] = {
    "url": "the simulated server",
    "username": "the simulated server has no users",
    "password": "the simulated server has no users",
    "passwordFile": "the simulated server has no users",
    "credentialProvider": "the simulated server has no users",
    "replyTimeout": "the plan's network decides how late a reply may be",
    "group": "one query, and the other consumers of its group",
    "consumer": "one query, and the other consumers of its group",
    "shards": "no stream of a plan is in shards",
    "columnNameOfCorruptRecord": "a matter of one row",
    "nullValue": "a matter of one row",
    "arrowBatches": "the form in which Spark gets rows",
}

OF_THE_START = ("startingOffsets", "startingTimestamp")
# A query keeps its streams, the start of its new groups, and what it removes.
_KEPT = ("streams", "streamsPattern", "streamsExcept", *OF_THE_START, "onCommit")
# How often each other option is set, if those that are set allow it.
_CHANCES: Mapping[str, float] = {
    "onNewCheckpoint": 0.1,
    "createStreams": 0.1,
    "maxEntriesPerTrigger": 0.7,
    "maxBytesPerTrigger": 0.2,
    "targetBatchTime": 0.1,
    "minEntriesPerTrigger": 0.1,
    "maxTriggerDelay": 0.08,
    "entriesPerPartition": 0.4,
    "minPartitions": 0.15,
    "ordered": 0.25,
    "noAck": 0.2,
    "failOnDataLoss": 0.4,
    "mode": 0.15,
    "claimIdle": 0.08,
    "maxDeliveries": 0.04,
    "retryDelay": 0.08,
}
# The same, in plans with this group of powers.
_WITH_POWERS: Mapping[str, Mapping[str, float]] = {
    "others": {"claimIdle": 0.4, "noAck": 0.0},  # a query with noAck stops, and does nothing more
    "limits": {"maxDeliveries": 0.8},
}


def first(chance: random.Random, streams: int, powers: Collection[str]) -> dict[str, str]:
    """Return random options of a query over this number of streams. powers: groups of powers of the run."""
    settings = {"streamsPattern": PATTERN} if chance.random() < 0.4 else {"streams": ",".join(STREAMS[:streams])}
    if "streamsPattern" in settings and chance.random() < 0.25:
        settings["streamsExcept"] = EXCLUDED
    if chance.random() < 0.1:
        settings["startingTimestamp"] = ID
    else:
        settings["startingOffsets"] = chance.choice(VALUES["startingOffsets"])
    if "checkpoint" not in powers and chance.random() < 0.35:  # else it would report its own removals
        settings["onCommit"] = chance.choice(VALUES["onCommit"])
    return _with_others(chance, settings, powers)


def later(chance: random.Random, before: Mapping[str, str], powers: Collection[str]) -> dict[str, str]:
    """Return random options for another start of a query. before: of its first start."""
    return _with_others(chance, {name: before[name] for name in _KEPT if name in before}, powers)


def _with_others(chance: random.Random, settings: dict[str, str], powers: Collection[str]) -> dict[str, str]:
    chances = dict(_CHANCES)
    for group, changed in _WITH_POWERS.items():
        if group in powers:
            chances |= changed
    wanted = [name for name, often in chances.items() if chance.random() < often]
    chance.shuffle(wanted)
    for name in wanted:
        more = with_needed(name, chance.choice(VALUES[name]))
        if all(_may_be(settings, one, value) for one, value in more.items()):
            settings |= more
    return settings


def _may_be(settings: Mapping[str, str], name: str, value: str) -> bool:
    return settings.get(name, value) == value and all(
        may_stand_together(name, value, other, VALUES[other][0] if other == "streams" else given)
        for other, given in settings.items()
        if other != name
    )


@functools.cache
def may_stand_together(name: str, value: str, other: str, other_value: str) -> bool:
    """Whether the product takes both options, with what each of them needs."""
    settings = {**with_needed(name, value), **with_needed(other, other_value), name: value, other: other_value}
    return _refusal(settings) is None


@functools.cache
def _needed(name: str, value: str) -> tuple[tuple[str, str], ...]:
    settings = {name: value}
    while (refusal := _refusal(settings)) is not None:
        added = next(
            (
                {word: given}
                for word in re.findall(r"\w+", refusal)
                if word in VALUES and word not in settings
                for given in VALUES[word]
                if _refusal({**settings, word: given}) != refusal
            ),
            None,
        )
        assert added is not None, f"no plan can have option {name}={value}: {refusal}"
        settings |= added
    return tuple(settings.items())


def with_option(settings: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    """Return these options with one more and those that it needs, and without those that the product refuses then."""
    changed = with_needed(name, value)
    for other, given in settings.items():
        with_other = {**with_needed(other, given), other: given, **changed}
        if _refusal(with_other) is None:
            changed = with_other
    return changed


def with_all(settings: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return these options with all of others, one after the other."""
    for name, value in wanted.items():
        settings = with_option(settings, name, value)
    return {**settings}


def without(settings: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return these options without those of these names."""
    return {name: value for name, value in settings.items() if name not in names}


def long_delays(text: str) -> list[float]:
    """Return the delays of option retryDelay that are longer than a second, in seconds; one of 0 if none is."""
    seconds = [duration(delay) / 1000 for delay in text.split(",") if delay]
    return [delay for delay in seconds if delay > 1] or [0.0]


def with_needed(name: str, value: str) -> dict[str, str]:
    """Return an option with those that it needs: the product's own refusals name them."""
    return dict(_needed(name, value))


def _refusal(settings: Mapping[str, str]) -> str | None:
    """Return why the product refuses these options; None: it takes them."""
    given = {"streams": VALUES["streams"][0]} if "streamsPattern" not in settings else {}
    texts = {name: str(1_700_000_000_000) if value == ID else value for name, value in settings.items()}
    try:
        SourceOptions.parse({**_REQUIRED, **given, **texts})
    except InvalidOptionError as error:
        return error.message
    return None
