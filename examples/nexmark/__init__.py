"""Nexmark, a benchmark of streaming SQL, over Redis Streams."""
