"""Send chunks to the server: the states of a chunk, exactly once and at least once."""
