"""Tests of the package `words`."""
# ruff: noqa: PT009 - pytest is not needed here

import unittest

from . import most_frequent


class MostFrequent(unittest.TestCase):
    """What counts as a word, and in which order they come."""

    def test_words_are_counted_whatever_their_case(self) -> None:
        """`The` is `the`."""
        self.assertEqual(most_frequent("The cat saw the dog", 1), [("the", 2)])

    def test_an_apostrophe_is_part_of_a_word(self) -> None:
        """`don't` is one word."""
        self.assertEqual(most_frequent("don't don't do", 1), [("don't", 2)])

    def test_a_text_without_words_has_none(self) -> None:
        """Numbers and signs are not words."""
        self.assertEqual(most_frequent("1 + 1"), [])
