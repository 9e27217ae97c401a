"""Where the rows of a job's micro-batches go: tables of any format that Spark writes, and streams.

A micro-batch may be run again after a crash. batch_folders and catalog_table replace its earlier rows. A Delta table
and the sink of streams record written batches. appended_table writes at least once.
"""
