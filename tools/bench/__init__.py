"""The performance table: groups of rows, each a ratio of two programs measured in turns in the same run."""
