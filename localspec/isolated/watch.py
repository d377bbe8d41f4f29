"""Progress and cancellation of a check or a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.streaming.cancellation import Cancellation

OnMeasured = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Watch:
    """Callback and cancellation of whoever waits for a measurement.

    progress: gets what is being done, and how many seconds all of it will probably take from
    now on; None while nobody knows.
    """

    progress: OnMeasured
    cancellation: Cancellation = field(default_factory=Cancellation)
