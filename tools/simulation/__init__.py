"""The query and its surroundings without Spark: seeded random interleavings of everything that may happen to them.

A *plan* is a list of *steps*, made from a seed (plan.py). The *world* carries them out (world.py): some are Spark's
(spark.py), most are *powers* (hands_*.py): what producers, other consumers, operators and accidents do. Every step may
carry a delay in *ticks*: a tick is a moment before or after bytes leave the product, or between two things that Spark
does (ticks.py). The *model* knows of every entry whether it must reach the sink, and why it may not (model.py); the
*verdict* holds the sink, the errors and the counted losses against it (verdict.py).

    python -m tools.simulation --runs 20000 --server redis --seed 1
    RSTREAM_SEED=17 python -m pytest tests/simulation -s
"""
