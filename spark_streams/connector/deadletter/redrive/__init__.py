"""Send dead letters back to a stream, or delete them: each exactly once."""
