"""Models opened with as many layers on GPUs as there turns out to be memory for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localspec.errors import MemoryLimitError
from localspec.preflight.fit import check_room, plan_here
from localspec.preflight.room import Planned

if TYPE_CHECKING:
    from localspec.engine.models import Models
    from localspec.engine.sources import Source
    from localspec.gguf_file.header import Header

    # Opens what is to be opened; the stack gets what closes it.
    OpenModels = Callable[[list[Source], contextlib.ExitStack], Models]

logger = logging.getLogger(__name__)


def open_fitting(
    sources: Sequence[Source],
    projector: Header | None,
    open_models: OpenModels,
    undo: contextlib.ExitStack,
    *,
    force: bool,
) -> Models:
    """The models, opened as `plan.plan_layers` finds that they fit; undo gets what closes them.

    sources: the target first. projector: of the target, if it has one. Nothing is chosen for
    what an application has loaded itself. force: open even what seems not to fit.

    Where memory runs out, fewer layers are tried, as a warning tells. Raises MemoryLimitError
    where nothing was left to choose, or nothing helps; ModelFileError; OptionError.
    """
    files = [
        Planned(source.header, source.options, source.role)
        for source in sources
        if source.header is not None
    ]
    if not files:
        return open_models(list(sources), undo)
    all_known = len(files) == len(sources)
    if projector is not None:
        files.append(Planned(projector, role="mmproj"))
    plan = plan_here(files)
    if not force:
        check_room(plan)
    fewer = plan.fewer()
    while True:
        planned = iter(plan.models)
        chosen = [
            source if source.header is None else source._replace(options=next(planned).options)
            for source in sources
        ]
        with contextlib.ExitStack() as undo_try:
            try:
                models = open_models(chosen, undo_try)
            except MemoryLimitError as error:
                smaller = next(fewer, None)
                if smaller is None:
                    raise
                plan = smaller
                logger.warning(
                    "memory ran out (%s); trying again with fewer layers on GPUs: %s",
                    error,
                    plan.memory.gpu_layers_in_words,
                )
            else:
                undo.push(undo_try.pop_all())
                return models._replace(memory=plan.memory if all_known else None)
