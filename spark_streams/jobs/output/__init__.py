"""Where the rows of a job's micro-batches go: tables of any format that Spark writes, and streams.

A micro-batch may be run again, after a crash. batch_folders and catalog_table replace what it has left, a Delta table
and the sink of streams know what is written; appended_table promises no more than that nothing is lost.
"""
