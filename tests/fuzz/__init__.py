"""Fuzzing of everything that reads input from other programs or people: `make fuzz`."""
