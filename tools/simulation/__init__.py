"""The query and its surroundings without Spark: seeded random interleavings of all events that may affect them.

A *plan* is a list of *steps* that a seed generates (plan.py). The *world* executes them (world.py): some are Spark's
(spark.py), most are *powers* (powers_*.py), the actions of producers, other consumers, operators and accidents. A step
may have a delay in *ticks*: a tick is a moment before or after the library sends bytes, or between two actions of Spark
(actor.py). The *model* knows for every entry whether it must reach the sink, and the *reasons* why it may be missing
(model.py, reasons.py). The *verdict* gives what is known of each entry to the judge (verdict.py).

    scripts/simulate --runs 20000 --seed 1
    scripts/simulate --runs 20000 --seed 1 --server redis
    RSTREAM_SEED=17 python -m pytest tests/simulation -s
"""
