"""The version of this package. It is defined here only."""

__version__ = "0.1.0"
