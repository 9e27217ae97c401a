"""Sizes and intervals of a query's requests to the server. They are no options: the code that creates a reader may pass
others, as tests do, and the reader takes them to its tasks.

Rates and times were measured with entries of 40 bytes on redis-server, both on one machine of two cores; facts (R…) are
in docs/internals/facts.md. A server serves no other client while it executes a command.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.intervals import IDLE_CHECK, IDLE_CHECK_EACH, PATTERN_INTERVAL, PATTERN_INTERVAL_EACH
from spark_streams.connector.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.wire.lease import DEFAULT_TERMS, LeaseTerms
from spark_streams.connector.wire.replies.scan import MOST_STREAMS


@dataclass(frozen=True)
class Limits:
    """Limits of one reader.

    A task, and the pages that it reads:
    smallest_task: entries; reading fewer takes less time than the task itself
    first_page: entries, before the size of an entry is known
    largest_page: entries. Pages of 1,000 reach 1.6 M entries/s, of 4,000 2.5, of 8,000 2.7, larger ones less
    page_bytes: of a page, if its entries have the size of those before them
    max_reply_bytes: beyond it the page is requested again in small pieces

    Pending lists; those of many streams share a round trip:
    pending_page: entries of one stream. 1,000 at a time reach 2.6 M/s, 10,000 3.7, and 100,000 3.0
    pending_round: entries of all streams; the driver holds their IDs, a few megabytes
    pending_streams: streams. 500 at a time reach 61,000 streams/s, 2,000 86,000, 8,000 89,000

    Reserving (XREADGROUP):
    reserve_step: entries of one command, 10 ms of the server's time; larger ones are no faster
    reserve_round: entries of all streams in a round trip, whose commands are executed without a pause (R15)
    prefetch_entries: entries of a batch; reserving fewer (50 ms) takes less time than Spark needs between two batches

    claim_page: entries that are claimed with one command, 4 ms of the server's time; larger ones are no faster
    returned_entries: entries of a retry stream that one trigger returns, about a second; the next trigger continues
    pattern_interval: seconds between two searches for streams that match the pattern
    pattern_interval_each: the same, per stream: a search takes 9 µs per stream
    pattern_streams: of a pattern; offsets name each of them

    An idle query (query.idle):
    idle_wait: maximum seconds that one call of latestOffset waits; Spark stops a query between two calls. After a
        batch the first calls wait less (Idle.batch_ran)
    idle_check: seconds between two checks of streams and groups that receive no entries; 0: each call checks
    idle_check_each: the same, per stream: a check takes three commands per stream
    role_check: seconds between two questions whether the server is still the master (wire.connect)

    Removing committed entries (onCommit):
    sweep_streams: streams that are checked together
    lag_check: seconds between two checks of streams in which another group or consumer is behind

    The sample from which a schema is inferred:
    sample_entries: of a stream, from either end
    sample_bytes: of all streams together, if entries are alike

    Samples of the size of entries (maxBytesPerTrigger, source.sampled_size):
    sampled_entries: of a stream
    sampled_at_once: entries of all streams together, but at least one of each
    sampled_bytes: of a stream, if its entries have the size of the first one

    note_page: notes that a task writes, or the driver takes, with one command
    dead_letters: how dead letters are read and posted
    lease: how the query's lease is taken and renewed
    """

    smallest_task: int = 10_000
    first_page: int = 200
    largest_page: int = 8_000
    page_bytes: int = 4 << 20
    max_reply_bytes: int = 32 << 20
    pending_page: int = 10_000
    pending_round: int = 100_000
    pending_streams: int = 2_000
    reserve_step: int = 10_000
    reserve_round: int = 10_000
    prefetch_entries: int = 50_000
    claim_page: int = 1_000
    returned_entries: int = 20_000
    pattern_interval: float = PATTERN_INTERVAL
    pattern_interval_each: float = PATTERN_INTERVAL_EACH
    pattern_streams: int = MOST_STREAMS
    idle_wait: float = 0.2
    idle_check: float = IDLE_CHECK
    idle_check_each: float = IDLE_CHECK_EACH
    role_check: float = 60.0
    sweep_streams: int = 500
    lag_check: float = 10.0
    sample_entries: int = 1_000
    sample_bytes: int = 32 << 20
    sampled_entries: int = 50
    sampled_at_once: int = 1_000
    sampled_bytes: int = 64 << 10
    note_page: int = 500
    dead_letters: DeadLetterLimits = DEAD_LETTER_LIMITS
    lease: LeaseTerms = DEFAULT_TERMS


LIMITS = Limits()
