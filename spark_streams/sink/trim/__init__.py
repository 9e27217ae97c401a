"""Trim streams after writing."""
