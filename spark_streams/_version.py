"""The version, for whoever says it: importing this imports nothing else."""

__version__ = "0.1.0"
