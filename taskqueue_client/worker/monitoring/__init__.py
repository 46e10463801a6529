"""Metrics and health of a worker."""
