"""The version of the package, and whether there is a release. Importing this module imports no other."""

__version__ = "0.1.0"
# The newest version with a date in CHANGELOG.md; empty: nothing was released. Set by `python -m tools.release_state`.
RELEASED = ""
