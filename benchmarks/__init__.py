"""Side by side with the peers and with the bare transport: `make benchmarks` runs all of them."""
