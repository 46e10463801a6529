"""Metrics, health and tracing of a worker."""
