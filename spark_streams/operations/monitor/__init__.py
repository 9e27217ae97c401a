"""Monitor streams and groups. Nothing here changes a stream or a group."""
