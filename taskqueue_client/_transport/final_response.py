"""The response class below the synchronous connections: `http.client`'s, without interim responses."""

from __future__ import annotations

from http.client import HTTPResponse

_INTERIM = range(102, 200)
"""The statuses of responses that the final response follows. `http.client` skips 100, and 101 is final."""


class FinalResponse(HTTPResponse):
    """The final response to a request.

    `http.client` takes 103 Early Hints for the whole response. The connection would then be used again, and
    the next request would receive the response to this one.
    """

    def begin(self) -> None:
        """Read the heads of interim responses, and that of the final one."""
        super().begin()
        while self.status in _INTERIM:
            self.headers = self.msg = None  # type: ignore[assignment] # `begin` reads only if it is None
            super().begin()
