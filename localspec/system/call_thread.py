"""A call in a thread of its own, also with a stack of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")

# One size for the stacks of all threads that start next, anywhere in the process.
_stack_size_lock = threading.Lock()


class CallThread(threading.Thread, Generic[Result]):
    """A thread that makes one call, and ends.

    A pool refuses work once the main thread has ended, while others continue.

    Args:
        daemon: Whether the process may end before it.
    """

    def __init__(self, call: Callable[[], Result], *, daemon: bool = False) -> None:
        super().__init__(name="localspec-call", daemon=daemon)
        self._call = call
        self._outcome: Future[Result] = Future()

    def run(self) -> None:
        try:
            self._outcome.set_result(self._call())
        except BaseException as failure:
            self._outcome.set_exception(failure)

    def result(self) -> Result:
        """The call's result, or what it raises, once the thread has ended."""
        self.join()
        return self._outcome.result()


def on_deep_stack(call: Callable[[], Result], stack_bytes: int) -> Result:
    """The result of `call`, which runs in a thread with a stack of stack_bytes.

    A large stack is cheap: the system provides its memory only as the call uses it.

    Raises:
        MemoryError: If there is no room for such a stack.
    """
    thread = CallThread(call)
    with _stack_size_lock:
        usual = threading.stack_size(stack_bytes)
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no memory for a stack of {stack_bytes} bytes") from error
        finally:
            threading.stack_size(usual)
    return thread.result()
