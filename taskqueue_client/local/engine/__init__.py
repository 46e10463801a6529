"""The engine of the local queue: the Queue's state machine on SQLite and a clock.

Each endpoint of the Queue is a function in one of these modules, named like it in snake_case. It takes
the `Core`, then what its parameters name (see `http.api`): the caller, if it checks scopes itself or
records who called; URL parameters; the request's body, valid under its schema and with its defaults; a
page's `token` and `limit`. It returns the response's body and raises `Refusal`. Only
`claim_work` waits.
"""

from .core import Core as Core
from .core import Settings as Settings
from .resolvers import BackgroundWork as BackgroundWork
from .store import Store as Store
