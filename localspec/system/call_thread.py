"""Calls a function in a thread of its own, if necessary with a larger stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")

# Held while the stack size for new threads is changed, which is one for the whole process.
_stack_size_lock = threading.Lock()


class CallThread(threading.Thread, Generic[Result]):
    """A thread that makes one call, and ends.

    Unlike a thread pool, it can be used by other threads after the main thread has ended.

    Args:
        call: The function to call.
        daemon: Whether the process may end before the call does.
    """

    def __init__(self, call: Callable[[], Result], *, daemon: bool = False) -> None:
        super().__init__(name="localspec-call", daemon=daemon)
        self._call = call
        self._outcome: Future[Result] = Future()

    def run(self) -> None:
        """Make the call, and keep its result or its exception. Called by `start`."""
        try:
            self._outcome.set_result(self._call())
        except BaseException as error:
            self._outcome.set_exception(error)

    def result(self) -> Result:
        """Wait for the thread's end. Returns the call's result, or raises its exception."""
        self.join()
        return self._outcome.result()


def on_deep_stack(call: Callable[[], Result], stack_bytes: int) -> Result:
    """The result of `call`, which runs in a thread with a stack of stack_bytes.

    A large stack is cheap: the system provides its memory only as the call uses it.

    Raises:
        MemoryError: If there is no room for such a stack. Besides, what `call` raises.
    """
    thread = CallThread(call)
    with _stack_size_lock:
        usual_bytes = threading.stack_size(stack_bytes)
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no memory for a stack of {stack_bytes} bytes") from error
        finally:
            threading.stack_size(usual_bytes)
    return thread.result()
