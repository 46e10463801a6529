"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machine may be busy: a slow example is no failure.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

CONTRACT = Path(__file__).parents[2] / "shared" / "contract"


@pytest.fixture(autouse=True)
def no_credentials_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no Taskcluster and no proxy settings of whoever runs them."""
    for name in ("ROOT_URL", "PROXY_URL", "CLIENT_ID", "ACCESS_TOKEN", "CERTIFICATE"):
        monkeypatch.delenv(f"TASKCLUSTER_{name}", raising=False)


@pytest.fixture(scope="session")
def contract() -> Path:
    """The folder that says how the real Queue behaves."""
    if not CONTRACT.is_dir():
        pytest.skip("the measured contract of the Queue is not beside this checkout")
    return CONTRACT
