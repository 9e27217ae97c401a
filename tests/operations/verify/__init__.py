"""`rstream verify`."""
