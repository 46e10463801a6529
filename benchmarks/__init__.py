"""Benchmarks beside similar packages and bare transports: `make benchmarks` runs all of them."""
