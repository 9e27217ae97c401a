"""Trimming a stream after writing."""
