"""Sizes and intervals of a query's requests to the server. They are no options: the code that creates a reader may pass
others, as tests do, and the reader takes them to its tasks.

Rates and times were measured with entries of 40 bytes on redis-server, on one machine of two cores; facts (R…) are in
docs/internals/facts.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.given_text import IDLE_CHECK, IDLE_CHECK_EACH, PATTERN_INTERVAL, PATTERN_INTERVAL_EACH
from spark_streams.connector.deadletter.post import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.wire.lease import DEFAULT_TERMS, LeaseTerms
from spark_streams.connector.wire.scan import MOST_STREAMS


@dataclass(frozen=True)
class Limits:
    """Limits of one reader."""

    # A task, and the pages that it reads.
    smallest_task: int = 10_000  # entries; reading fewer takes less time than the task itself
    first_page: int = 200  # entries, before the size of an entry is known
    # entries. Pages of 1,000 reach 1.6 M entries/s, of 4,000 2.5, of 8,000 2.7, larger ones less
    largest_page: int = 8_000
    page_bytes: int = 4 << 20  # of a page, if its entries have the size of those before them
    max_reply_bytes: int = 32 << 20  # beyond it the page is requested again in small pieces

    # Pending lists; those of many streams share a round trip.
    pending_page: int = 10_000  # entries of one stream. 1,000 at a time reach 2.6 M/s, 10,000 3.7, and 100,000 3.0
    pending_round: int = 100_000  # entries of all streams; the driver holds their IDs, a few megabytes
    pending_streams: int = 2_000  # streams. 500 at a time reach 61,000 streams/s, 2,000 86,000, 8,000 89,000

    # Reserving (XREADGROUP).
    reserve_step: int = 10_000  # entries of one command, 10 ms of the server's time; larger ones are no faster
    # entries of all streams in a round trip, whose commands are executed without a pause (R15)
    reserve_round: int = 10_000
    # entries of a batch; reserving fewer (50 ms) takes less time than Spark needs between two batches
    prefetch_entries: int = 50_000
    # entries that are claimed with one command, 4 ms of the server's time; larger ones are no faster
    claim_page: int = 1_000
    # entries of a retry stream that one trigger returns, about a second; the next trigger continues
    returned_entries: int = 20_000
    pattern_interval: float = PATTERN_INTERVAL  # seconds between two searches for streams that match the pattern
    pattern_interval_each: float = PATTERN_INTERVAL_EACH  # the same, per stream: a search takes 9 µs per stream
    pattern_streams: int = MOST_STREAMS  # of a pattern; offsets name each of them

    # An idle query (query.triggering).
    # maximum seconds that one call of latestOffset waits; Spark stops a query between two calls. After a batch the
    # first calls wait less (Idle.batch_ran)
    idle_wait: float = 0.2
    # seconds between two checks of streams and groups that receive no entries; 0: each call checks
    idle_check: float = IDLE_CHECK
    idle_check_each: float = IDLE_CHECK_EACH  # the same, per stream: a check takes three commands per stream
    role_check: float = 60.0  # seconds between two questions whether the server is still the master (wire.connect)

    # Removing committed entries (onCommit).
    sweep_streams: int = 500  # streams that are checked together
    lag_check: float = 10.0  # seconds between two checks of streams in which another group or consumer is behind

    # The sample from which a schema is inferred.
    sample_entries: int = 1_000  # of a stream, from either end
    sample_bytes: int = 32 << 20  # of all streams together, if entries are alike

    # Samples of the size of entries (maxBytesPerTrigger, source.quota).
    sampled_entries: int = 50  # of a stream
    sampled_at_once: int = 1_000  # entries of all streams together, but at least one of each
    sampled_bytes: int = 64 << 10  # of a stream, if its entries have the size of the first one
    note_page: int = 500  # notes that a task writes, or the driver takes, with one command
    dead_letters: DeadLetterLimits = DEAD_LETTER_LIMITS  # how dead letters are read and posted
    lease: LeaseTerms = DEFAULT_TERMS  # how the query's lease is taken and renewed


LIMITS = Limits()
