"""How many texts the models' contexts hold side by side, so that none has to be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.errors import OptionError
from localspec.preflight.fit import plan_here
from localspec.preflight.plan import Plan, plan_layers
from localspec.preflight.room import Planned

if TYPE_CHECKING:
    from localspec.engine.sources import Source

MOST_PARALLEL = 16


def side_by_side(
    sources: Sequence[Source], parallel: int, kept_bytes: int
) -> tuple[list[Source], int]:
    """The sources with up to `parallel` sequences, and the bytes that all but one reserve.

    As many as half of kept_bytes pays for, so that the rest has room for a copy of any text;
    and as fit without a layer less on a GPU, or a snapshot less. One of an application's own
    model, or with RPC servers. Raises OptionError for a number outside its range, and what
    planning raises.
    """
    if not (isinstance(parallel, int) and 1 <= parallel <= MOST_PARALLEL):
        raise OptionError(f"parallel is {parallel!r}", f"Choose 1 to {MOST_PARALLEL}.")
    files = [
        Planned(source.header, source.options, source.role)
        for source in sources
        if source.header is not None and not source.options.rpc
    ]
    if parallel == 1 or len(files) < len(sources):
        return list(sources), 0
    alone = plan_here(files)
    for count in range(parallel, 1, -1):
        planned = [_with(model, count) for model in files]
        plan = plan_layers(planned, alone.context_length, alone.room)
        reserved = plan.memory.needed_bytes - alone.memory.needed_bytes
        if reserved <= kept_bytes // 2 and _is_like(plan, alone):
            options = [model.options for model in planned]
            chosen = zip(sources, options, strict=True)
            return [source._replace(options=own) for source, own in chosen], reserved
    return list(sources), 0


def _with(model: Planned, num_sequences: int) -> Planned:
    return model._replace(options=replace(model.options, num_sequences=num_sequences))


def _is_like(plan: Plan, alone: Plan) -> bool:
    """Whether a plan fits, and differs from that for one text in its sequences only."""
    if alone.room.shortages(plan.memory):
        return False
    return [_with(model, 1) for model in plan.models] == list(alone.models)
