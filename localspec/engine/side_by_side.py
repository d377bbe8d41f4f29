"""How many texts the models' contexts hold side by side, so that none has to be copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.preflight.fit import plan_here
from localspec.preflight.plan import (
    check_parallel,
    plan_side_by_side,
    reserved_bytes,
    with_sequences,
)
from localspec.preflight.room import Planned

if TYPE_CHECKING:
    from localspec.engine.sources import Source
    from localspec.gguf_file.header import Header


def side_by_side(
    sources: Sequence[Source], projector: Header | None, parallel: int, kept_bytes: int
) -> tuple[list[Source], int]:
    """The sources with up to `parallel` sequences, and the bytes that all but one reserve.

    See `plan_side_by_side`. One of an application's own model, or with RPC servers. projector:
    of the target, if it has one. Raises OptionError for a number outside its range, and what
    planning raises.
    """
    check_parallel(parallel)
    files = [
        Planned(source.header, source.options, source.role)
        for source in sources
        if source.header is not None and not source.options.rpc
    ]
    if parallel == 1 or len(files) < len(sources):
        return list(sources), 0
    seen = [] if projector is None else [Planned(projector, role="mmproj")]
    alone = plan_here([*files, *seen])
    plan = plan_side_by_side([*files, *seen], alone, parallel, kept_bytes)
    count = plan.models[0].options.num_sequences
    chosen = zip(sources, files, strict=True)
    return [
        source._replace(options=with_sequences(model, count).options)
        for source, model in chosen
    ], reserved_bytes(plan, alone)
