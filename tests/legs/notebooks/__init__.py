"""The notebooks of examples/notebooks."""
