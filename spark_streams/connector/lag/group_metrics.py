"""Metrics of a consumer group and of its server, for watched queries and for the exporter.

docs/reference/metrics.md is printed from the tables (`python -m tools.reference`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_streams.base.printable import label_text
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries
from spark_streams.connector.lag.margin import Margin
from spark_streams.connector.lag.survey import GroupLag

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OF_GROUPS = ("stream", "group")


class Family(NamedTuple):
    name: str
    help: str
    counts: bool = False  # it is a counter, else a gauge
    spreads: bool = False  # it is a histogram


class MetricTable(NamedTuple):
    labels: tuple[str, ...]  # of all of them
    families: tuple[Family, ...]


# Of a histogram: the number at each bound, and the sum.
Spread = tuple[Sequence[tuple[str, float]], float]
# Values of the labels; the value of each metric, None: it has none.
Sample = tuple[Sequence[str], Sequence[float | Spread | None]]


def metrics(table: MetricTable, samples: Iterable[Sample]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {(True, False): CounterMetricFamily, (False, True): HistogramMetricFamily}
    families = [
        kinds.get((family.counts, family.spreads), GaugeMetricFamily)(family.name, family.help, labels=table.labels)
        for family in table.families
    ]
    for labels, values in samples:
        shown = [label_text(label) for label in labels]
        for metric, value in zip(families, values, strict=True):
            if value is not None:
                metric.add_metric(shown, *(value if isinstance(value, tuple) else (value,)))
    yield from families


_GROUP = MetricTable(
    OF_GROUPS,
    (
        Family("rstream_lag_entries", "Entries that are not yet delivered to the group."),
        Family("rstream_lag_seconds", "Age of the oldest entry that the group has not acknowledged."),
        Family("rstream_pending_entries", "Entries that are delivered and not acknowledged."),
        Family("rstream_oldest_pending_seconds", "Seconds since the oldest pending entry was delivered."),
        Family(
            "rstream_released_entries",
            "Pending entries that a consumer released (XNACK) and no consumer has taken.",
        ),
    ),
)
_WAITING = MetricTable(
    (*OF_GROUPS, "attempt"),
    (
        Family("rstream_waiting_entries", "Entries that wait for a retry (retryDelay)."),
        Family("rstream_waiting_seconds", "Seconds until the first of these is due."),
    ),
)
_MARGIN = MetricTable(
    (*OF_GROUPS, "rule"),
    (
        Family(
            "rstream_margin_seconds",
            "Seconds until this rule trims an entry that the group needs; NaN: not known.",
        ),
    ),
)
_SERVER = MetricTable((), (Family("rstream_server_up", "1 if the stream server answers."),))
TABLES = (_SERVER, _GROUP, _MARGIN, _WAITING)


def group_metrics(groups: Iterable[GroupLag]) -> Iterable[Metric]:
    return metrics(_GROUP, map(_of_group, groups))


def _of_group(group: GroupLag) -> Sample:
    age = None if group.lag_ms is None else group.lag_ms / 1000
    return (group.stream, group.group), (
        group.lag,
        age,
        group.pending,
        (group.oldest_idle_ms or 0) / 1000,
        group.released,
    )


def margin_metrics(margins: Mapping[tuple[str, str], Margin]) -> Iterable[Metric]:
    """Return the metric of the margins. margins: by stream and group."""
    return metrics(
        _MARGIN,
        (((*key, one.rule), (math.nan if one.seconds is None else one.seconds,)) for key, one in margins.items()),
    )


def waiting_metrics(entries: Iterable[WaitingEntries]) -> Iterable[Metric]:
    """Return the metrics of entries that wait for a retry, and of returned entries (attempt `returned`)."""
    return metrics(_WAITING, map(_of_waiting, entries))


def _of_waiting(entries: WaitingEntries) -> Sample:
    if entries.attempt is None:
        return (entries.stream, entries.group, "returned"), (entries.entries, None)
    return (entries.stream, entries.group, str(entries.attempt)), (entries.entries, (entries.due_in or 0) / 1000)


def server_up(answers: bool) -> Iterable[Metric]:
    """Return the metric of whether the server answers."""
    return metrics(_SERVER, [((), (float(answers),))])
