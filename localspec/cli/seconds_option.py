"""`--seconds`, the limit of `verify` and `bench`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click


def seconds_option(default: float | None) -> Callable[[Any], Any]:
    """Decorate a command with the option; None means no limit."""
    return click.option(
        "--seconds",
        type=click.FloatRange(min=1),
        callback=_no_nan,
        default=default,
        show_default="no limit" if default is None else True,
        help="The time limit, once the models are loaded. Then the results so far are printed.",
    )


def _no_nan(
    _context: click.Context, _option: click.Parameter, value: float | None
) -> float | None:
    if value is not None and math.isnan(value):  # no range excludes it
        raise click.BadParameter("nan is not a number of seconds.")
    return value
