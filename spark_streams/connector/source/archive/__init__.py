"""The table that the job `archive` writes (jobs/parts/archiving.py), and how it is read before a stream."""

HEX = "rstream:hex"  # field that holds an entry which does not fit a map of strings
