"""Sentinel: one master, two replicas, three sentinels, real processes."""
