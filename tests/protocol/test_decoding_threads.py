"""Responses that several threads decode at the same time, from the first one on."""

from __future__ import annotations

import subprocess
import sys

UNREADABLE_ANNOTATIONS = """
import msgspec
from taskqueue_client import events, legacy
from taskqueue_client.artifacts import chain_verification
from taskqueue_client.models import Model
from taskqueue_client.worker.features.upstream import UpstreamTask

structs = [Model, UpstreamTask, chain_verification._Document, chain_verification._Task]
for each in structs:
    structs += each.__subclasses__()
for each in structs:
    each.__annotations__ = dict.fromkeys(each.__annotations__, "unknown")
leaves = [each for each in structs if not each.__subclasses__()]
for each in leaves:
    msgspec.json.Decoder(each)
print(len(leaves))
"""


def test_the_types_of_fields_are_resolved_by_the_import_as_threads_that_do_so_crash_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE_ANNOTATIONS], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert int(done.stdout) > 60
