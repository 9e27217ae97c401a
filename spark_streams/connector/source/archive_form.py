"""Name of the field that holds an entry which does not fit a map of strings (jobs/parts/archiving.py)."""

HEX = "rstream:hex"
