"""Where the rows of a job's micro-batches go: tables of any format that Spark writes, and streams."""
