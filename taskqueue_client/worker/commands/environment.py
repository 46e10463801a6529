"""The environment variables of a task's commands, without credentials and secrets of the worker."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import cast

from taskqueue_client._arguments import SYSTEM_TEXT, is_system_text
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.worker_log import log

CREDENTIALS = frozenset({"TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", "TASKCLUSTER_CERTIFICATE"})
"""The worker's variables that no setting passes to a command."""

PASSED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("TASKCLUSTER_INSTANCE_TYPE", "TASKCLUSTER_WORKER_LOCATION"),
    }
)
"""The worker's variables that every command gets, unless they look like a secret."""

SECRET_NAMES: Mapping[str, str] = {
    "TASKCLUSTER_(?!INSTANCE_TYPE$|WORKER_LOCATION$).*|(TASKQUEUE|PULSE)_.*": "settings of the worker",
    "NOTIFY_SOCKET|LISTEN_.*|WATCHDOG_.*": "sockets of the worker's service manager",
    ".*(PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SECRET|TOKEN|CREDENTIAL|BEARER|COOKIE|PRIVATE).*": "secrets",
    r".+_PWD|.*PASS(FILE|WD)?\d*(_.*)?|(.*_)?(ROOT|ADMIN|DB)?PW\d*": "passwords",
    r".*KEYS?\d*(_.*)?|.*KEY(FILE|RING|STORE|TAB)(_.*)?|(.*_)?(HMAC|SIGNATURE|SEED|MNEMONIC)": "keys",
    "(.*_)?(HTTP|O)?(AUTH2?|AUTHORIZATION|CREDS?|JWT|PAT|PATS|SAS|OTP|NETRC)(_(?!SOCK$).*)?": "logins",
    "(.*_)?((SENTRY)?DSN|WEBHOOK(URL)?|CONNECTION_STRING|CONNSTR)(_.*)?": "addresses that contain a secret",
}
"""Names of variables that look like a secret, in upper case, and what they are."""

SECRET_VALUES: Mapping[str, str] = {
    r"(?<!ssh)://[^/@\s]+@": "URLs with a user: often a token",
    r"^(?!mailto:)[^:/@\s]+:[^/@\s]+@": "a user with a password, as proxies are written without a scheme",
    r"://[^/@\s]*:(?!\d+(/|$))[^@\s]*@": "URLs with a password, even with a slash in it",
    r"[?&;](sig|(x-amz-|x-goog-)?signature|token|access_token|key|api_?key|password|secret|bewit)=": "signed "
    "URLs",
    r"(^|;)\s*(password|pwd|accountkey|sharedaccesskey)\s*=\s*[^\s;]": "connection strings",
    r"https://hooks\.slack\.com/services/": "webhooks",
    r"-----BEGIN [A-Z ]*PRIVATE KEY": "private keys",
    r"\beyJ[\w-]{8,}\.[\w-]+\.": "JSON web tokens",
    r"\b(gh[pousr]_|github_pat_|glpat-|npm_|pypi-|xox[abprs]-|AKIA|ASIA)\w{10}": "tokens of known services",
    r"\bsk(-ant-|_live_)\w": "tokens of known services, too",
    r"^(Authorization: *)?(Basic|Bearer|token) \S": "authorization headers",
}
"""Values that look like a secret, and what they are."""

_SECRET_NAME = re.compile("|".join(SECRET_NAMES))
_SECRET_VALUE = re.compile("|".join(SECRET_VALUES), re.IGNORECASE)


def looks_like_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or by its value."""
    return bool(_SECRET_NAME.fullmatch(name.upper()) or _SECRET_VALUE.search(value))


class CommandEnvironment:
    """The variables of the worker's environment that commands get; the same for all runs of a worker.

    Args:
        pass_environment: Names of variables to pass in addition to `PASSED`, as the setting of that name.
        worker: The worker's environment; that of this process by default.
    """

    def __init__(self, pass_environment: Sequence[str] = (), worker: Mapping[str, str] | None = None) -> None:
        self._worker = os.environ if worker is None else worker
        self._named = frozenset(pass_environment) - CREDENTIALS
        self._patterns = [each for each in (*PASSED, *pass_environment) if "*" in each]
        self._sorted: tuple[dict[str, str], dict[str, str]] = {}, {}  # the worker's, and those to pass
        self._is_logged = False
        self._lock = threading.Lock()

    def of_command(
        self, given: Mapping[str, str], task: Mapping[str, str], *, pass_credentials: bool = False
    ) -> dict[str, str]:
        """Return the environment of one command: variables of the worker, of the handler, and of the task.

        Args:
            given: The variables that the handler adds.
            task: The variables that take precedence over all others, such as `TASK_ID`.
            pass_credentials: Add everything in `given`, even the worker's own secrets.

        Raises:
            InvalidArgument: `pass_credentials` is off, and `given` contains `CREDENTIALS`, or a secret of the
                worker's environment with the same value, as in `{**os.environ}`; or `given` contains a
                name or value that no environment can have. The error shows no value.
        """
        _check(given)
        worker, passed = self._sorted = self._sort(dict(self._worker), task)
        if not pass_credentials:
            self._refuse_credentials(given, worker, passed)
        return _bypassing_http_proxies({**passed, **given, **task})

    def _sort(self, worker: dict[str, str], task: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        if worker == self._sorted[0]:  # nearly always
            return self._sorted
        passed = {name: value for name, value in worker.items() if self._is_passed(name, value)}
        self._log_once(sorted(worker.keys() - passed.keys() - task.keys()))
        return worker, passed

    def _is_passed(self, name: str, value: str) -> bool:
        if name in self._named:
            return True
        is_wanted = name in PASSED or any(fnmatchcase(name, each) for each in self._patterns)
        return is_wanted and not looks_like_secret(name, value)

    def _refuse_credentials(
        self, given: Mapping[str, str], worker: Mapping[str, str], passed: Mapping[str, str]
    ) -> None:
        for name, value in given.items():
            if name in CREDENTIALS:
                raise InvalidArgument("env", name, _NO_CREDENTIALS)
            if name not in passed and worker.get(name) == value and looks_like_secret(name, value):
                raise InvalidArgument("env", name, _NO_SECRETS, f"{name!r} is a secret of the worker")

    def _log_once(self, left_out: list[str]) -> None:
        with self._lock:
            is_logged, self._is_logged = self._is_logged, True
        if left_out and not is_logged:
            log.info(
                "environment variables not passed to commands: %s; the setting pass_environment "
                "(TASKQUEUE_PASS_ENVIRONMENT) names variables to pass",
                ", ".join(left_out),
            )


_NO_CREDENTIALS = (
    "variables without credentials, unless the handler sets pass_credentials=True; "
    "with proxy=True a command calls Taskcluster through a proxy, without credentials"
)
_NO_SECRETS = (
    "variables that are not secrets of the worker, unless the handler sets pass_credentials=True; "
    "env adds to the environment of the command, so it needs no copy of os.environ"
)


def _bypassing_http_proxies(environment: dict[str, str]) -> dict[str, str]:
    """Let calls to the proxy of the run bypass HTTP proxies, which cannot reach its address."""
    if "TASKCLUSTER_PROXY_URL" not in environment or environment.keys().isdisjoint(_HTTP_PROXIES):
        return environment
    found = _RUN_PROXY.match(environment["TASKCLUSTER_PROXY_URL"])
    address = found[1] if found else "127.0.0.1"
    lower, upper = environment.get("no_proxy", ""), environment.get("NO_PROXY", "")
    return environment | {
        "no_proxy": _with_host(lower or upper, address),
        "NO_PROXY": _with_host(upper or lower, address),
    }


def _with_host(hosts: str, host: str) -> str:
    return hosts if hosts == "*" else ",".join(filter(None, [hosts, host]))


_RUN_PROXY = re.compile(r"http://([\d.]+):")
"""The beginning of the URL of a run's proxy, with the address that it listens on."""

_HTTP_PROXIES = frozenset({"HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"})


def _check(given: object) -> None:
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise InvalidArgument("env", given, "a dict of the names and values of variables", f"of type {kind}")
    for name, value in cast("Mapping[object, object]", given).items():
        if not is_system_text(name) or not name or "=" in name:
            allowed = f"the name of a variable: a non-empty str without = and {SYSTEM_TEXT}"
            raise InvalidArgument("env", name, allowed)
        if not is_system_text(value):
            is_text = isinstance(value, str)
            finding = "has NUL or a lone surrogate" if is_text else f"is of type {type(value).__name__}"
            # Not the value, which may be secret: `outcome_of` finds the name in the payload.
            raise InvalidArgument(f"env[{name!r}]", name, f"a str {SYSTEM_TEXT}", f"its value {finding}")


_PR_SET_DUMPABLE = 4


@cache  # once is enough
def protect_process() -> None:
    """Keep other processes of the same user from reading this one's memory and environment.

    Linux only. Root and processes with `CAP_SYS_PTRACE` can read them nevertheless. This process writes
    no core dumps from then on, and debuggers of the same user cannot attach to it.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only workers with commands need it

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
