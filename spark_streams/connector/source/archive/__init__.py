"""Read the table that the job `archive` writes."""
