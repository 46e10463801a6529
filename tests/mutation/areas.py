"""The modules that are mutated, and the tests that have to notice the mutants.

Modules that end processes, such as `worker/commands/command_process.py`, are not mutated: some of their
mutants would kill all processes of the machine.
"""

from __future__ import annotations

from typing import NamedTuple


class Area(NamedTuple):
    """Modules, below `taskqueue_client/`, and the files or single tests that check exactly these modules."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


def _tests(file: str, *names: str) -> list[str]:
    """Return single tests of a file that has slow tests of other modules, too."""
    return [f"{file}::{name}" for name in names]


AREAS = {
    "retry": Area(
        ("_protocol/retry.py",),
        (
            "tests/client/test_retries.py",
            "tests/client/test_clock_skew.py",
            "tests/client/test_responses.py",
            "tests/client/test_call_spans.py",
            *_tests(
                "tests/artifacts/test_upload_faults.py",
                "test_a_transient_error_of_storage_is_retried",
                "test_a_wait_that_storage_asks_for_is_kept",
                "test_a_wait_that_storage_asks_for_may_be_no_longer_than_a_call_takes",
                "test_storage_in_lasting_trouble_is_an_error_and_no_artifact",
            ),
        ),
    ),
    "claims": Area(
        (
            "worker/claims/cancellation.py",
            "worker/claims/claimed_run.py",
            "worker/claims/claiming.py",
            "worker/claims/keeper.py",
            "worker/claims/reclaiming.py",
        ),
        (
            "tests/worker/test_run_state.py",
            "tests/worker/test_lease.py",
            "tests/worker/test_queue_outages.py",
            "tests/worker/test_attempt_limits.py",
            "tests/worker/test_keeper.py",
            "tests/worker/test_several_queues.py",
            "tests/worker/test_task_source.py",
            "tests/worker/test_tracing.py",
            "tests/worker/test_cancellation_interval.py",
            *_tests(
                "tests/worker/test_loss_reasons.py",
                "test_polling_without_the_scope_is_logged_once_in_one_line",
                "test_a_proxy_that_refuses_to_poll_is_not_taken_for_a_missing_scope",
            ),
            "tests/events/test_worker_cancellations.py",
        ),
    ),
    "reporting": Area(
        ("worker/run/reporting.py",),
        (
            "tests/worker/test_queue_outages.py",
            "tests/worker/test_attempt_limits.py",
            "tests/worker/test_keeper.py",
            "tests/worker/test_upload_retries.py",
            "tests/worker/test_loss_reasons.py",
        ),
    ),
    "lifecycle": Area(
        ("worker/run/handlers.py", "worker/run/lifecycle.py"),
        (
            "tests/worker/test_attempt_limits.py",
            "tests/worker/test_lost_claims.py",
            "tests/worker/test_loop.py",
            "tests/worker/test_loss_reasons.py",
            "tests/worker/test_run_time_limit.py",
            "tests/worker/test_health_checks.py",
            *_tests(
                "tests/worker/test_chain_of_trust.py",
                "test_a_run_that_is_completed_or_failed_has_a_signed_list_of_its_artifacts",
                "test_a_run_that_ends_as_an_exception_is_not_signed",
                "test_a_worker_without_a_key_signs_nothing",
                "test_a_missing_file_makes_the_run_fail_and_is_not_among_the_signed_artifacts",
                "test_a_run_whose_chain_of_trust_cannot_be_uploaded_is_not_completed",
            ),
            *_tests(
                "tests/worker/test_shutdown.py",
                "TestStages",
                "TestInAHurry",
                "test_the_second_call_hurries",
                "test_the_second_call_does_not_wait_for_a_handler_that_never_ends",
            ),
            *_tests(
                "tests/worker/test_shutdown_timeout.py",
                "test_a_worker_ends_in_time_though_a_handler_or_call_hangs",
                "test_a_worker_waits_until_the_files_of_a_run_are_removed_but_not_longer_than_the_timeout",
            ),
            *_tests(
                "tests/worker/test_cycles.py",
                "test_a_worker_forgets_a_run_that_has_ended_before_the_next_run_ends",
            ),
            *_tests(
                "tests/worker/test_live_log.py::TestRuns",
                "test_the_link_leads_to_the_stream_while_the_run_goes_on_and_to_the_uploaded_log_after_it",
            ),
            *_tests(
                "tests/worker/test_log_checkpoints.py::TestRuns",
                "test_a_canceled_run_has_its_log_up_to_then",
            ),
            *_tests(
                "tests/worker/test_tracing.py",
                "test_a_failed_run_names_the_type_of_its_error_and_never_its_message",
            ),
        ),
    ),
    "declared": Area(
        ("worker/run/declared_artifacts.py",),
        (
            "tests/worker/test_run_artifacts.py",
            "tests/worker/test_loss_reasons.py",
            *_tests(
                "tests/worker/test_upload_retries.py",
                "test_an_artifact_that_storage_refuses_for_good_gets_an_error_artifact_that_says_why",
            ),
        ),
    ),
    "wire": Area(
        ("_protocol/wire.py", "_protocol/api_responses.py"),
        (
            "tests/protocol/test_hawk.py",
            "tests/protocol/test_wire.py",
            "tests/protocol/test_calls_signatures.py",
            "tests/protocol/test_calls_responses.py",
            "tests/client",
        ),
    ),
    "conversation": Area(
        ("_protocol/conversation.py", "_protocol/threads_and_tasks.py"),
        (
            "tests/protocol/test_conversation.py",
            "tests/protocol/test_calls_signatures.py",
            "tests/protocol/test_calls_paging.py",
        ),
    ),
    "uploading": Area(
        ("artifacts/uploading.py",),
        (
            "tests/artifacts/test_uploads.py",
            "tests/artifacts/test_upload_faults.py",
            "tests/artifacts/test_dishonest_storage.py",
            "tests/cli/test_cli_log.py",
        ),
    ),
    "downloading": Area(
        ("artifacts/downloading.py",),
        (
            "tests/artifacts/test_downloads.py",
            "tests/artifacts/test_download_servers.py",
            "tests/artifacts/test_dishonest_storage.py",
            *_tests(
                "tests/worker/test_chain_of_trust.py",
                "test_a_signed_artifact_is_handed_over",
                "test_a_tampered_artifact_is_not_handed_over",
                "test_sha512_proves_content_as_well",
            ),
        ),
    ),
    "shutdown": Area(
        ("worker/shutdown.py",),
        (
            "tests/worker/test_shutdown.py",
            "tests/worker/test_shutdown_timeout.py",
            "tests/worker/test_draining.py",
            *_tests(
                "tests/worker/test_repeated_errors.py",
                "test_after_several_internal_errors_with_the_same_cause_the_worker_stops",
                "test_another_end_of_a_run_begins_the_count_of_errors_anew",
                "test_without_a_limit_it_goes_on",
            ),
        ),
    ),
}
