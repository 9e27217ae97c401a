"""The performance table: groups of rows. A row is the ratio of two programs, measured in turns in the same run."""
