"""Name of the field that holds an entry which does not fit a map of strings (jobs/exact_fields.py)."""

HEX = "rstream:hex"
