"""Commands of `rstream` that only read from the server."""
