"""Tools for the event loop: calls in threads, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_Outcome = TypeVar("_Outcome")


async def in_thread(call: Callable[[], _Outcome]) -> _Outcome:
    """Run the call in a thread; its result. A task that is cancelled ends once that has."""
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # or asyncio logs that it was never retrieved
        raise


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Outcome]) -> _Outcome | None:
    """The result of the work; None if the client disconnects first, which cancels it."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait([task, gone])
    return None if task.cancelled() else task.result()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
