"""Faults on purpose: a history of what went in and what came out, a checker of it, and ways to break a query between.

`tests/faults` runs each fault once with a printed seed; `scripts/chaos` runs them at random for as long as one likes.
"""
