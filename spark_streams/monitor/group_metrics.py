"""What there is to say of a group and of its server in Prometheus' words, whoever serves it: a watched query or the
exporter. Names, labels and help are those of the table in docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_streams.deadletter.waiting import WaitingEntries
from spark_streams.monitor.lag_survey import GroupStanding

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OF_GROUPS = ("stream", "group")


def group_metrics(groups: Iterable[GroupStanding]) -> Iterable[Metric]:
    """How these groups stand."""
    from prometheus_client.core import GaugeMetricFamily

    lag = GaugeMetricFamily("rstream_lag_entries", "Entries that the group has yet to be given.", labels=OF_GROUPS)
    age = GaugeMetricFamily(
        "rstream_lag_seconds", "Age of the oldest entry that the group has not acknowledged.", labels=OF_GROUPS
    )
    pending = GaugeMetricFamily(
        "rstream_pending_entries", "Entries given to consumers and not acknowledged.", labels=OF_GROUPS
    )
    oldest = GaugeMetricFamily(
        "rstream_oldest_pending_seconds", "How long the oldest of these has waited.", labels=OF_GROUPS
    )
    released = GaugeMetricFamily(
        "rstream_released_entries",
        "Of the pending entries those that a consumer released (XNACK) and nobody has taken.",
        labels=OF_GROUPS,
    )
    for one in groups:
        key = one.stream, one.group
        released.add_metric(key, one.released)
        lag.add_metric(key, one.lag)
        pending.add_metric(key, one.pending)
        oldest.add_metric(key, (one.oldest_idle_ms or 0) / 1000)
        if one.lag_ms is not None:
            age.add_metric(key, one.lag_ms / 1000)
    yield from (lag, age, pending, oldest, released)


def waiting_metrics(entries: Iterable[WaitingEntries]) -> Iterable[Metric]:
    """What waits for another try, and what has come back for it (attempt `returned`)."""
    from prometheus_client.core import GaugeMetricFamily

    labels = (*OF_GROUPS, "attempt")
    waiting = GaugeMetricFamily("rstream_waiting_entries", "Entries that wait for another try.", labels=labels)
    due = GaugeMetricFamily("rstream_waiting_seconds", "How long the first of these has yet to wait.", labels=labels)
    for one in entries:
        key = one.stream, one.group, "returned" if one.attempt is None else str(one.attempt)
        waiting.add_metric(key, one.entries)
        if one.attempt is not None:
            due.add_metric(key, (one.due_in or 0) / 1000)
    yield from (waiting, due)


def server_up(answers: bool) -> Metric:
    """Whether it does."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily("rstream_server_up", "Whether the stream server answers.", value=float(answers))
