"""The jobs, one file each (etl, load, archive, aggregate, reprocess_dead_letters), and their common parts.

`rstream run` runs a job, or spark-submit with a script of jobs/ beside the package or with __main__.py of this folder.
templates/ holds a configuration of each job, conf/ the default settings of Spark.
Only the commands `rstream run` and `rstream init` import this package.
"""

from __future__ import annotations
