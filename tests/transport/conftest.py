"""A private certificate authority, which no store of this machine knows."""

from __future__ import annotations

import pytest

from tests.certificates import Authority, make_authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"), "127.0.0.1")
