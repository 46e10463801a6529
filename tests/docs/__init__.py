"""The documentation, and the examples in it."""
