"""Entries that could not be processed, and their way back."""
