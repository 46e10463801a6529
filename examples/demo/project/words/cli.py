"""Prints the most frequent words of what it reads."""

import sys

from . import most_frequent


def main() -> None:
    """Read standard input, and print a word in each line."""
    # TODO: let the user choose how many
    for word, count in most_frequent(sys.stdin.read()):
        print(f"{count:>5} {word}")
