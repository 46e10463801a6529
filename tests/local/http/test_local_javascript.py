"""The official JavaScript client works against the local queue as it is.

The client has no listener any more (`PulseListener` was removed): `test_amqp.py` tests messages on a broker.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client.local import PUBLIC_SCOPES, LocalQueue

_GUEST = Path(__file__).parent / "guest.cjs"


@pytest.fixture(scope="module")
def seen(node_modules: Path) -> dict[str, Any]:
    """The client's report after it took a task from creation to resolution."""
    with LocalQueue(anonymous_scopes=PUBLIC_SCOPES) as local:
        environment = {
            **os.environ,
            "NODE_PATH": str(node_modules),
            "TASKCLUSTER_ROOT_URL": local.root_url,
            "TASKCLUSTER_CLIENT_ID": local.client_id,
            "TASKCLUSTER_ACCESS_TOKEN": local.access_token,
        }
        ended = subprocess.run(
            ["node", str(_GUEST)], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def test_a_task_is_created_claimed_reclaimed_and_completed(seen: dict[str, Any]) -> None:
    assert (seen["state"], seen["keys"]) == ("completed", ["9", "10"])


def test_all_types_of_artifacts_are_uploaded_and_read(seen: dict[str, Any]) -> None:
    assert seen["listed"] == ["error", "link", "object", "reference", "s3", "s3"]
    assert seen["contents"] == {
        "public/s3.txt": "from s3",
        "public/link": "from s3",
        "public/object.txt": "from object",
    }
    assert seen["errorArtifact"] == 424


def test_signed_urls_give_what_is_private(seen: dict[str, Any]) -> None:
    assert (seen["signed"], seen["unsigned"]) == (200, 403)


def test_temporary_credentials_may_do_what_their_scopes_say(seen: dict[str, Any]) -> None:
    assert (seen["queues"], seen["refused"]) == (1, "InsufficientScopes")


def test_credential_information_describes_temporary_credentials(seen: dict[str, Any]) -> None:
    information = seen["information"]
    assert information == {"clientId": "local", "type": "temporary", "active": True, "scopes": True}
