"""Retries requests to the hub where that may help; a caller can always stop them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from localspec.errors import DownloadError

Result = TypeVar("Result")

BEAT_S = 0.25  # how often a waiting caller is asked whether to continue
RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between tries that fail
_MAX_WAIT_S = 600.0  # a server that asks for more is an error


class HubBusyError(DownloadError):
    """Another try may help. wait_s: seconds that the server asks to wait, or None."""

    def __init__(self, message: str, wait_s: int | None) -> None:
        super().__init__(message, "Try again later; received bytes are kept.")
        self.wait_s = wait_s


def patiently(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of `ask`, retried while it raises HubBusyError.

    on_wait: called in this thread a few times a second until there is a result. An exception
    in it ends the waiting at once, and leaves an unanswered request to its own timeout. Raises
    what `ask` raises, HubBusyError after the sixth try.
    """
    for num_vain in range(len(RETRY_DELAYS_S)):
        try:
            return _answer(ask, on_wait)
        except HubBusyError as error:
            end = time.monotonic() + delay_s(error, num_vain)
            while (left := end - time.monotonic()) > 0:
                on_wait()
                time.sleep(min(left, BEAT_S))
    return _answer(ask, on_wait)


def _answer(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of one try, in a thread of its own: reading from a silent server blocks."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(ask())
        except BaseException as failure:
            outcome.set_exception(failure)

    # A daemon, so that an abandoned try does not hold up the exit.
    asking = threading.Thread(target=run, name="localspec-asking", daemon=True)
    asking.start()
    asking.join(BEAT_S)
    while asking.is_alive():
        on_wait()
        asking.join(BEAT_S)
    return outcome.result()


def delay_s(error: HubBusyError, num_vain: int) -> float:
    """Seconds to wait after a failure: as long as the server asks, or growing steps.

    num_vain: failed tries in a row before this one. Raises DownloadError if the server asks
    for more than ten minutes.
    """
    if error.wait_s is None:
        return RETRY_DELAYS_S[min(num_vain, len(RETRY_DELAYS_S) - 1)]
    if error.wait_s > _MAX_WAIT_S:
        raise DownloadError(
            f"{error}: too many requests, try again in {error.wait_s} s",
            "Wait, or log in (hf auth login) for a higher limit.",
        ) from error
    return float(error.wait_s)
