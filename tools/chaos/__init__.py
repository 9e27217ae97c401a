"""Faults on purpose: ways to break a query, a history of its entries from producer to sink, and a checker of that.

`tests/legs/faults` runs each fault once with a printed seed. `scripts/chaos` runs them at random for any time.
"""
