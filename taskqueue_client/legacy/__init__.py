"""Legacy polling: workers that poll Azure storage queues, as those of the Queue did from 2014 to 2019.

The functions return calls that both clients make: `queue.send(poll_task_urls("proj/worker-type"))`, or with
`AsyncQueue`, `await queue.send(…)`. `WorkerLoop(task_source=AzureTaskSource)` is a worker that polls.
"""

from __future__ import annotations

from .azure_source import AzureTaskSource
from .poll_calls import (
    PolledClaim,
    PollQueue,
    PollTaskUrl,
    PollTaskUrls,
    claim_work,
    poll_task_url,
    poll_task_urls,
)

__all__ = [
    "AzureTaskSource", "PollQueue", "PollTaskUrl", "PollTaskUrls", "PolledClaim", "claim_work",
    "poll_task_url", "poll_task_urls",
]  # fmt: skip
