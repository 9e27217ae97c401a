"""Shards: one logical stream made of several. Their names, the shard of a key, and their state on the server."""
