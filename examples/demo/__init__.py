"""The demo: a local queue, a worker in a separate process, and a small graph of tasks."""
