"""The core of the source as an executable model: one stream, one group, one query, and its checkpoints.

`facts.py` has the values and pure comparisons, `source.py` the driver, `world.py` Spark and what is true about each
entry, `clients.py` everything else at random, and `scenarios.py` what may happen and which limit explains a failure.
`product.py` puts the product in the place of the model, and compares the two step by step.

    python -m tools.simulation.core_model --seeds 0-100
    python -m tools.simulation.core_model --seeds 0-20 --subject product
    python -m tools.simulation.core_model --seeds 0-20 --subject both
    python -m tools.simulation.core_model --seeds 0-5 --scenario "new checkpoint"

A history has some processes of a driver, which are killed at any command, and ends with a drain without faults. Then
each entry must be in a committed batch, or noticed as lost, once. A strict query may only stop for a reason, and a
batch that runs again must have the same entries. The report names each kind of failure, and the limit below that
explains it. The command fails if there is none. The model is small enough to try a change of the rules first: change
source.py, and run the scenarios again.

Facts, for each stream, group and query:

| fact | where | what fails without it |
|---|---|---|
| last-delivered ID D, entries-read, pending list of our consumer | group | the batch is what the group delivered |
| our consumer | group | a shared group that was created again is silent |
| mark `<id> <number>.<checkpoint>-<batch>`, after the last XACK | key | an older checkpoint skips entries silently |
| mark `<id> 0.<entries ever added up to id>`, with XGROUP CREATE | key | a kill before the first offset loses entries |
| mark `<id> 0.seek`, by `rstream groups seek` | key | a query sets its group back to the checkpoint |
| mark `<id> 0.<checkpoint>-first`, after the first offset log | key | a new checkpoint stops for acknowledged entries |
| position, number, token, ranges with `count` | offset | name and size of a batch, for its replay |
| `until`: server time of the look that made the batch | offset | entries handed over later are acknowledged unread |
| `owed`: `new` range of the batch before, if not acknowledged | offset | a kill after the commit log: read twice |
| `group_read`: what a shared group had read | offset | a server that forgets it stops a strict query |
| `read`, `missed`, `added`: the account | offset | removed entries are silent, or a strict query stops for ever |
| `guarded`, record of attempts | offset, key | batches that kill the query are acknowledged unread |

Rules:

1. Look in one MULTI. If the query is alone, a second look confirms a finding, because the pending list is read later.
2. Alone in the group, the checkpoint decides. Otherwise the group decides.
3. The `start` of latestOffset and partitions is committed: acknowledge its ranges and `owed`, nothing else. If the mark
   is older than it can be, the server was restored: then all of ours between mark and position, delivered by `until`.
4. Old entries (pending at or below the position) and claims come when `start` is acknowledged.
5. First the entries that are pending in (position, D]; if there is none, XREADGROUP.
6. A task that finds another number of entries than `count` fails, or counts (failOnDataLoss=false).
7. A correction without entries is logged as an empty batch: otherwise a strict query stops again.
   A batch that runs again only reads; the trigger after it acknowledges and repairs.
8. A new checkpoint begins where the group stands, and numbers go on. Pending entries up to there are old entries,
   everything else is acknowledged, or was lost before. It begins at the mark only if that is of a begin without a
   logged batch, and entries are reserved above it. Its first batch runs again by its end alone, whatever the mark says.

Limits:

1. A server returns to an older state, and as many entries as were lost are added before the next trigger.
2. A shared group that is set forward looks as if another consumer had read the entries.
3. Entries that are removed unread from a shared group are not noticed if a consumer reads past them before the next
   look, or if the server does not know entries-read.
4. Old entries that no batch has yet vanish silently if another client acknowledges them, or with the
   consumer or the group.
5. Shared group, entries-read unknown, XDEL above D: a strict query stops again at each start until the group has read
   past the entry.
6. Several interventions within one trigger of a query that is alone: the account may be wrong.
7. XCLAIM with IDLE or TIME in the past, or a server clock that was set back (not simulated).
8. A consumer that joins, reads and is deleted between two looks (not simulated).
9. A shared group is set back, and entries pending above D have left the stream: they stay pending until the group has
   passed them again.
10. A query answers for entries from the first batch of its checkpoint on. What others remove, acknowledge or move
    before that is logged is not noticed, except for entries that are pending and were removed.
11. A server that has forgotten how many entries a shared group has read, and corrects the number later (Redis 7.0 after
    a failover): a strict query may stop once although nothing is lost.

Product and model do not divide entries alike into batches in the scenarios that scenarios.py names (`ALIKE` has the
others), so there the product is judged by the truth alone. Batches that kill the query are not compared.

Not modelled: many streams in one offset, noAck, dead letters by mode, order, an old driver that still runs, statistics
of batches that kill the query. `tools/simulation` runs the product itself.
"""
