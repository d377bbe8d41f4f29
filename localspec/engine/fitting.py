"""Models opened with as many layers on GPUs as there turns out to be memory for."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import MemoryLimitError
from localspec.llama.options import LlamaOptions
from localspec.preflight.fit import check_room, plan_here

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel

    # Opens models with these options; the stack gets what closes them.
    OpenModels = Callable[[list[LlamaOptions], contextlib.ExitStack], list[LlamaModel]]

logger = logging.getLogger(__name__)


def open_fitting(
    sources: Sequence[object],
    options: Sequence[LlamaOptions],
    open_models: OpenModels,
    undo: contextlib.ExitStack,
    *,
    force: bool,
) -> list[LlamaModel]:
    """The models, opened as `plan.plan_layers` finds that they fit; undo gets what closes them.

    sources: target and draft. Those that are no paths an application has loaded itself, and
    nothing is chosen for them. force: open even what seems not to fit.

    Where memory runs out, fewer layers are tried, as a warning tells. Raises MemoryLimitError
    where nothing was left to choose, or nothing helps; ModelFileError; OptionError.
    """
    files = [
        (Path(source), own)
        for source, own in zip(sources, options, strict=False)
        if isinstance(source, str | os.PathLike)
    ]
    if not files:
        return open_models(list(options), undo)
    plan = plan_here(*zip(*files, strict=True))
    if not force:
        check_room(plan)
    fewer = plan.fewer()
    while True:
        planned = iter(plan.models)
        chosen = [
            next(planned).options if isinstance(source, str | os.PathLike) else own
            for source, own in zip(sources, options, strict=False)
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
                return models
