"""Tools for the event loop: calls in threads, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_Outcome = TypeVar("_Outcome")


def _cannot_cancel() -> None:
    """Cancels a call that cannot be cancelled."""


async def in_thread(
    call: Callable[[], _Outcome], cancel: Callable[[], object] = _cannot_cancel
) -> _Outcome:
    """What the call returns or raises.

    If the task is cancelled, `cancel` is called, and the cancellation is raised once the call
    has ended.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # else asyncio logs that nobody asked for it
        raise


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Outcome]) -> _Outcome | None:
    """What the work returns. If the client disconnects first, the work is cancelled: None."""
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
