"""How much a query's source asks of the server at a time, and how often. No option: whoever makes a reader may hand it
others, as tests do, and they go with the reader to its tasks.

Rates and times were measured with entries of 40 bytes on redis-server, both on one machine of two cores; facts (R…) are
in docs/internals/facts.md. While the server carries out a command it answers nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.wire.lease import DEFAULT_TERMS, Terms


@dataclass(frozen=True)
class Limits:
    """Of one reader.

    A task, and the pages that it reads:
    smallest_task: entries; reading fewer costs less than the task around it
    first_page: entries, while nobody knows how large they are
    largest_page: entries. Pages of 1,000 come to 1.6 M entries/s, of 4,000 to 2.5, of 8,000 to 2.7, larger ones to less
    page_bytes: of a page, as far as its entries are like those before them
    most_bytes: of a reply; beyond it the page is asked for again in small pieces

    Pending lists, of which those of many streams share a round trip:
    pending_page: entries of one stream. 1,000 at a time come to 2.6 M/s, 10,000 to 3.7, and 100,000 to 3.0
    pending_round: entries of all streams; the driver holds their ids, a few megabytes
    pending_streams: streams. 500 at a time come to 61,000 streams/s, 2,000 to 86,000, 8,000 to 89,000

    Reserving (XREADGROUP):
    reserve_step: entries of one command, 10 ms of the server's time; larger ones are no faster
    reserve_round: entries of all streams in a round trip, whose commands are carried out without a pause (R15)
    worth_ahead: entries of a batch; reserving fewer (50 ms) takes less time than Spark needs between two batches

    claim_page: entries that are claimed with one command, 4 ms of the server's time; larger ones are no faster
    come_back: entries of a retry stream that one trigger has come back, about a second; the next one goes on
    look_every: seconds between two looks for streams that match the pattern

    An idle query (microbatch.idle):
    idle_wait: seconds that one call of latestOffset waits at most; Spark stops a query between two calls. After a
        batch the calls wait less at first (Idle.batch_ran)
    idle_look: seconds between two looks at streams and groups that get no entries; 0: each call looks
    idle_look_each: the same, for each stream: a look takes three commands per stream

    Removing what is committed (onCommit):
    sweep_streams: streams that are looked at together
    look_behind: seconds between two looks at streams in which another group or consumer is behind

    Where batches end if nothing is delivered (noAck):
    look_ids: entries of a batch whose ids are looked at one by one; of larger ones, the end is an estimate
    look_bytes: the same, of all streams, as far as entries are alike

    The sample that a schema is inferred from:
    sample_entries: of a stream, from either end
    sample_bytes: of all streams together, as far as entries are alike

    Samples that tell how large entries are (maxBytesPerTrigger, source.sampled_size):
    sampled_entries: of a stream
    sampled_at_once: entries of all streams together, but one of each at least
    sampled_bytes: of a stream, as far as its entries are like the first one

    note_page: notes that a task leaves, or the driver takes, with one command
    dead_letters: how they are looked at and posted
    lease: how the query's is taken and kept
    """

    smallest_task: int = 10_000
    first_page: int = 200
    largest_page: int = 8_000
    page_bytes: int = 4 << 20
    most_bytes: int = 32 << 20
    pending_page: int = 10_000
    pending_round: int = 100_000
    pending_streams: int = 2_000
    reserve_step: int = 10_000
    reserve_round: int = 10_000
    worth_ahead: int = 50_000
    claim_page: int = 1_000
    come_back: int = 20_000
    look_every: float = 2.0
    idle_wait: float = 0.2
    idle_look: float = 5.0
    idle_look_each: float = 1.0
    sweep_streams: int = 500
    look_behind: float = 10.0
    look_ids: int = 2_000
    look_bytes: int = 8 << 20
    sample_entries: int = 1_000
    sample_bytes: int = 32 << 20
    sampled_entries: int = 50
    sampled_at_once: int = 1_000
    sampled_bytes: int = 64 << 10
    note_page: int = 500
    dead_letters: DeadLetterLimits = DEAD_LETTER_LIMITS
    lease: Terms = DEFAULT_TERMS


LIMITS = Limits()
