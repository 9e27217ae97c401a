"""What there is to say of a group and of its server in Prometheus' words, whoever serves it: a watched query or the
exporter. Names, labels and help are those of the table in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_streams.deadletter.waiting import WaitingEntries
from spark_streams.monitor.lag_survey import GroupStanding

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OF_GROUPS = ("stream", "group")


class Family(NamedTuple):
    """A metric. counts: it is a counter, else a gauge."""

    name: str
    help: str
    counts: bool = False


Sample = tuple[
    Sequence[str], Sequence[float | None]
]  # values of the labels; of each family its value, None: it has none


def metrics(families: Sequence[Family], labels: Sequence[str], samples: Iterable[Sample]) -> Iterator[Metric]:
    """These families with the same labels."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made = [
        (CounterMetricFamily if family.counts else GaugeMetricFamily)(family.name, family.help, labels=labels)
        for family in families
    ]
    for of, values in samples:
        for metric, value in zip(made, values, strict=True):
            if value is not None:
                metric.add_metric(of, value)
    yield from made


_GROUP = (
    Family("rstream_lag_entries", "Entries that the group has yet to be given."),
    Family("rstream_lag_seconds", "Age of the oldest entry that the group has not acknowledged."),
    Family("rstream_pending_entries", "Entries given to consumers and not acknowledged."),
    Family("rstream_oldest_pending_seconds", "How long the oldest of these has waited."),
    Family(
        "rstream_released_entries",
        "Of the pending entries those that a consumer released (XNACK) and nobody has taken.",
    ),
)
_WAITING = (
    Family("rstream_waiting_entries", "Entries that wait for another try."),
    Family("rstream_waiting_seconds", "How long the first of these has yet to wait."),
)
_SERVER = (Family("rstream_server_up", "Whether the stream server answers."),)


def group_metrics(groups: Iterable[GroupStanding]) -> Iterable[Metric]:
    """How these groups stand."""
    return metrics(_GROUP, OF_GROUPS, map(_of_group, groups))


def _of_group(one: GroupStanding) -> Sample:
    age = None if one.lag_ms is None else one.lag_ms / 1000
    return (one.stream, one.group), (one.lag, age, one.pending, (one.oldest_idle_ms or 0) / 1000, one.released)


def waiting_metrics(entries: Iterable[WaitingEntries]) -> Iterable[Metric]:
    """What waits for another try, and what has come back for it (attempt `returned`)."""
    return metrics(_WAITING, (*OF_GROUPS, "attempt"), map(_of_waiting, entries))


def _of_waiting(one: WaitingEntries) -> Sample:
    if one.attempt is None:
        return (one.stream, one.group, "returned"), (one.entries, None)
    return (one.stream, one.group, str(one.attempt)), (one.entries, (one.due_in or 0) / 1000)


def server_up(answers: bool) -> Iterable[Metric]:
    """Whether it does."""
    return metrics(_SERVER, (), [((), (float(answers),))])
