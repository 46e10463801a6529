"""Claims: claim runs, reclaim them until they are resolved, and notice cancellation."""
