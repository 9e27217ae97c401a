"""The core of the source as an executable model: one stream, one group, one query, and its checkpoints.

`facts.py` has the values and pure comparisons, `source.py` the driver. `reader.py` puts it in the place of the product:
Spark, powers, accidents and the verdict are those of the simulation. `scenarios.py` has what may happen.

    python -m tools.simulation.core_model --seeds 0-100
    python -m tools.simulation.core_model --seeds 0-20 --subject both
    python -m tools.simulation.core_model --seeds 0-1 --scenario "new checkpoint" --story

The model is judged like the product (tools/simulation/verdict.py). Where both must divide entries alike into batches,
the same plan runs with model and product, and each step is compared: offsets, what the sink has, what stops a query,
and at each idle trigger the group and what is pending. The model is small enough to try a change of the rules first:
change source.py, and run the scenarios again.

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
4. Old entries (pending at or below the position) and claims come when `start` is acknowledged. If others had taken
   entries of it, as many that were handed over looked like these: an idle trigger begins again.
5. First the entries that are pending in (position, D]; if there is none, XREADGROUP.
6. A task that finds another number of entries than `count` fails, or counts (failOnDataLoss=false).
7. A correction without entries is logged as an empty batch: otherwise a strict query stops again.
   A batch that runs again only reads; the trigger after it acknowledges and repairs.
8. A new checkpoint begins where the group stands, and numbers go on. Pending entries up to there are old entries,
   everything else is acknowledged, or was lost before. It begins at the mark only if that is of a begin without a
   logged batch, and entries are reserved above it. Its first batch runs again by its end alone, whatever the mark says.

What the simulation knows as a limit of the product (tools/simulation/reasons.py) is one of the model, too. In
addition, after a restore the model may read again what the restored group has not (scenarios.restore).

Not modelled: many streams in one offset, noAck, dead letters by mode, order, an old driver that still runs, statistics
of batches that kill the query. Without a scenario: maxDeliveries, whose dead letters are the product's own.
"""
