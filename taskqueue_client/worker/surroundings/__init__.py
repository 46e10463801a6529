"""Services for a running task: proxy, live log, captured logging, upstream artifacts, chain of trust."""
