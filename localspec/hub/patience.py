"""Retries requests to the hub where that may help; a caller can always stop them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from typing import TypeVar

from localspec.errors import DownloadError

Result = TypeVar("Result")

BEAT_S = 0.25  # how often a waiting caller is asked whether to continue
RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between tries that fail
_MAX_WAIT_S = 600.0  # a server that asks for more is an error


class HubBusyError(DownloadError):
    """Another try may help. retry_after: the server's header of that name, or None."""

    def __init__(self, message: str, retry_after: str | None) -> None:
        super().__init__(message, "Try again later; what was received is kept.")
        self.retry_after = retry_after


def patiently(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of `ask`, retried while it raises HubBusyError.

    on_wait: called in this thread a few times a second until there is a result. What it raises
    ends the waiting at once, and leaves an unanswered request to its own timeout. Raises what
    `ask` raises, HubBusyError after the sixth try.
    """
    for num_vain in range(len(RETRY_DELAYS_S)):
        try:
            return _answer(ask, on_wait)
        except HubBusyError as error:
            _wait(wait_before_retry_s(error, num_vain), on_wait)
    return _answer(ask, on_wait)


def _answer(ask: Callable[[], Result], on_wait: Callable[[], None]) -> Result:
    """The result of one try, in a thread of its own: reading from a silent server blocks."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(ask())
        except BaseException as failure:
            outcome.set_exception(failure)

    # A daemon, so that a try that nobody waits for does not hold up the exit.
    asking = threading.Thread(target=run, name="localspec-asking", daemon=True)
    asking.start()
    asking.join(BEAT_S)
    while asking.is_alive():
        on_wait()
        asking.join(BEAT_S)
    return outcome.result()


def _wait(seconds: float, on_wait: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        on_wait()
        time.sleep(min(left, BEAT_S))


def wait_before_retry_s(error: HubBusyError, num_vain: int) -> float:
    """Seconds to wait after a failure: what the server asks for, or growing steps.

    num_vain: failed tries in a row before this one. Raises DownloadError if the server asks
    for more than ten minutes.
    """
    asked = error.retry_after
    if asked is not None and re.fullmatch(r"\d{1,9}", asked):
        if int(asked) > _MAX_WAIT_S:
            raise DownloadError(
                f"{error}: too many requests, try again in {asked} s",
                "Wait, or log in (hf auth login) for a higher limit.",
            ) from error
        return float(asked)
    return RETRY_DELAYS_S[min(num_vain, len(RETRY_DELAYS_S) - 1)]


def stated_wait(headers: Mapping[str, str]) -> str | None:
    """Retry-After in seconds; a date counts by the server's own clock."""
    value, now = headers.get("Retry-After"), headers.get("Date")
    if value is None or value.isdigit() or now is None:
        return value
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(now)
    except (TypeError, ValueError):
        return None
    return str(max(0, int(wait.total_seconds())))
