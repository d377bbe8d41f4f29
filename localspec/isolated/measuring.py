"""Checks and measurements of an engine, where its models are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from localspec.engine.base import BaseEngine
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.isolated.watch import Watch

Found = TypeVar("Found")


def measure(
    engine: BaseEngine,
    function: Callable[..., Found],
    *arguments: Any,
    watch: Watch,
    **keywords: Any,
) -> Found:
    """What a function makes of the `Engine` that has the models.

    function: of a module, called with that engine and all the rest, perhaps in another
    process; it obeys the watch's cancellation. Raises what it raises.
    """
    if isinstance(engine, IsolatedEngine):
        found: Found = engine.measure(function, *arguments, watch=watch, **keywords)
        return found
    return function(engine, *arguments, watch=watch, **keywords)
