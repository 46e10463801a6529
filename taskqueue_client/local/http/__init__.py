"""The HTTP server: reads and checks requests, calls their handlers, and writes responses."""
