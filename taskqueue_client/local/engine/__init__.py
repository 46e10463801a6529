"""The engine of the local queue: the Queue's state machine on SQLite and a clock.

Each endpoint of the Queue is a function in one of these modules, with the endpoint's name in snake_case. Its
first parameter is the `Core`; the names of the others say what they get (see `http.api`): the caller, if the
function checks scopes or records who called; parameters of the URL, or the `task_queue_id` and the `worker`
that they form; the request's body, valid and with the schema's defaults; a page's `token` and `limit`. It
returns the response's body, or raises `Refusal`. Only `claim_work` waits. The imports declare all endpoints.
"""

from . import claims_and_reports as claims_and_reports
from . import creation as creation
from . import scheduling as scheduling
from . import task_artifacts as task_artifacts
from . import task_queues as task_queues
from . import task_records as task_records
from . import worker_records as worker_records
from .core import Core as Core
from .core import Settings as Settings
from .resolvers import BackgroundWork as BackgroundWork
from .store import Store as Store
