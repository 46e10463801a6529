"""The demo: a local queue, a worker in a process of its own, and a small graph of tasks."""
