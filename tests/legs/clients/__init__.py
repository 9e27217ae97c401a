"""Clients in other languages: what they print of each stream command is the same on the engine and on redis-server."""
