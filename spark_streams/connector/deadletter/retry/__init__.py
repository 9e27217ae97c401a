"""Entries that wait for a retry, and their return to the query."""
