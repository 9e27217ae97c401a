"""Commands of `rstream` for dead letters."""
