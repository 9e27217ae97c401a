"""Servers that tests and tools start and stop: Redis, Valkey, clusters, Sentinel."""
