"""The protocol without I/O: calls as data, signatures, retries, and the decoding of responses."""
