"""Commands of `rstream` that manage consumer groups."""
