"""A script as scriptworker runs it: files in, files out, an exit code. It does not use `taskqueue_client`.

    python checksum_script.py config.json

`config.json` names `work_dir`, with `task.json` and the upstream artifacts, and `artifact_dir`. The script
writes the SHA-256 sums of the upstream artifacts to `public/SHA256SUMS`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

MALFORMED_PAYLOAD = 3
INTERMITTENT_TASK = 7


def main(config_path: str) -> int:
    """Return the exit code."""
    config = json.loads(Path(config_path).read_text())
    work_dir, artifact_dir = Path(config["work_dir"]), Path(config["artifact_dir"])
    payload = json.loads((work_dir / "task.json").read_text())["payload"]
    if payload["channel"] == "unknown":
        print("unknown channel", file=sys.stderr)
        return MALFORMED_PAYLOAD
    if payload["channel"] == "busy":
        print("the channel is busy", file=sys.stderr)
        return INTERMITTENT_TASK
    if payload["channel"] == "slow":
        time.sleep(3600)
    files = sorted(path for path in (work_dir / "cot").rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (artifact_dir / "public").mkdir()
    (artifact_dir / "public" / "SHA256SUMS").write_text("".join(sums))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
