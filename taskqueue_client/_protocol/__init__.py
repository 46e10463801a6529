"""Bytes and values: calls as data, signatures, retries, leases. No I/O."""
