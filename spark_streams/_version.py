"""The version of the package. Importing this module imports no other."""

__version__ = "0.1.0"
