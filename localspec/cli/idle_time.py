"""Prepares the next answer while a person types."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from localspec.chat import Chat
from localspec.engine import Engine

logger = logging.getLogger(__name__)

_RETRY_S = 0.01  # between two attempts to end it: it may not have begun yet


@contextlib.contextmanager
def idle_time(engine: Engine, chat: Chat) -> Iterator[None]:
    """While the block runs, a thread prepares the chat; it has ended when the block is left.

    What fails there can wait: it fails again when it is needed, and is said then.
    """

    def prepare() -> None:
        try:
            chat.prepare()
        except Exception:
            logger.info("idle time was of no use", exc_info=True)

    worker = threading.Thread(target=prepare, name="localspec-idle", daemon=True)
    worker.start()
    try:
        yield
    finally:
        while worker.is_alive():
            engine.cancel()
            worker.join(_RETRY_S)
