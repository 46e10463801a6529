"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machine may be busy: a slow example is no failure. The examples of `steady` are the same each time,
# so that a failure belongs to the change at hand; `--hypothesis-profile exploring` looks for new ones.
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("steady")

CONTRACT = Path(__file__).parents[2] / "shared" / "contract"


OURS = ("TASKCLUSTER_", "TASKQUEUE_")
NOT_OURS = {"TASKQUEUE_REQUIRE_BROKER"}  # said by whoever runs the tests


def our_settings() -> dict[str, str]:
    """What the environment says to clients and workers."""
    return {name: os.environ[name] for name in os.environ if name.startswith(OURS) and name not in NOT_OURS}


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Each test begins without settings of the machine or of another test, and leaves none behind."""
    before = our_settings()
    for name in before:
        del os.environ[name]
    yield
    for name in our_settings():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def contract() -> Path:
    """The folder that says how the real Queue behaves."""
    if not CONTRACT.is_dir():
        pytest.skip("the measured contract of the Queue is not beside this checkout")
    return CONTRACT
