"""Mutation testing of the core: `make mutants`."""
