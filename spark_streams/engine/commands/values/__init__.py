"""Commands on keys and on values that are not streams."""
