"""Features for a running task: proxy, live log, upstream artifacts, chain of trust."""
