"""The commands of `rstream`, one file for each; cli.py puts them together.

A command parses its arguments, calls the module that does the work, and prints a table, or JSON with `--json`. It
imports what it needs only when it runs, so that `rstream --help` is fast.
"""
