from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.local.engine.engine_world import World

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world() -> Iterator[World]:
    """An engine in memory, on a held clock."""
    made = World()
    yield made
    made.close()
