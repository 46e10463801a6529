"""Examples: each one runs, and the tests run each one against a local queue."""
