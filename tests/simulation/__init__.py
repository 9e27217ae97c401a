"""The query and its surroundings without Spark: seeded random interleavings of all events that may affect them.

A *plan* is a list of *steps* that a seed generates (plan.py). The *world* executes them (world.py): some are Spark's
(spark.py), most are *powers* (powers_*.py), the actions of producers, other consumers, operators and accidents. A step
may have a delay in *ticks*: a tick is a moment before or after the library sends bytes, or between two actions of Spark
(actor.py). The *model* knows for every entry whether it must reach the sink, and why it may be missing (model.py). The
*verdict* compares the sink, the errors and the counted losses with the model (verdict.py).

    python -m tools.simulation --runs 20000 --server redis --seed 1
    RSTREAM_SEED=17 python -m pytest tests/simulation -s
"""
