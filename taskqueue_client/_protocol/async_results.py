"""`AsyncResult`: the type of a call of an `async def`, as each type checker knows it.

mypy takes it for a `Coroutine`, pyright for a `CoroutineType`. A method that is not written as `async def`
needs the same type: otherwise mypy refuses the `async def` of a subclass that overrides it, or pyright
refuses the object where a protocol has an `async def`. mypy takes `MYPY` for true. pyright takes the last
import for the type of the name, in other modules.
"""

from __future__ import annotations

MYPY = False
if MYPY:
    from collections.abc import Coroutine as AsyncResult
else:
    from types import CoroutineType as AsyncResult

__all__ = ["AsyncResult"]
