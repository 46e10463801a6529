"""Counts words: the small project that the demo fetches, lints, tests and packages."""

import re
from collections import Counter


def most_frequent(text: str, count: int = 3) -> list[tuple[str, int]]:
    """The most frequent words of a text, and how often they occur."""
    return Counter(re.findall(r"[a-z']+", text.lower())).most_common(count)
