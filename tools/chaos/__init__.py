"""Faults on purpose: ways to break a query, with the driver, the producer and the checker of `rstream verify`.

`tests/legs/faults` plays each scene once with a printed seed. `scripts/chaos` plays them at random for any time.
"""
