"""Tests of tools/sizing."""
