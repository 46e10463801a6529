"""Tests of the Queue's messages and of listening to them."""
