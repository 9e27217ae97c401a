"""Running a query to its end: the signals that stop it, its end between two batches, an error as one line.

`spark_streams.run` and the jobs stand on it.
"""
