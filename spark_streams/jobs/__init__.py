"""The jobs, a file each (etl, load, archive, aggregate, reprocess_dead_letters), and what they share.

They are run by `rstream run`, by spark-submit with the entries in jobs/ beside the package, or with the one in this
folder (__main__.py). conf/ holds a sample configuration of each, and what Spark is told by default.
No other part of the package imports this one, but for the commands `rstream run` and `rstream init`.
"""

from __future__ import annotations
