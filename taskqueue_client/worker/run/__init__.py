"""A run from its claim to its report."""
