"""The commands of `rstream`, a file for each kind; cli.py puts them together.

A command parses its words, asks what does the work, and prints: a table for people, JSON for programs (`--json`).
What it needs is imported when it runs, so that `rstream --help` is there at once.
"""
