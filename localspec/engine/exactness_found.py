"""Probe once whether a target is exact here, and keep the result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from localspec.errors import DecodeError, OptionError
from localspec.exactness import Exactness
from localspec.gguf_file.header import Header
from localspec.llama.options import LlamaOptions
from localspec.llama.quirks import tiled_kernels
from localspec.policy.profile import Profile, exactness_setting

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel

logger = logging.getLogger(__name__)


def prepare_kernels(options: LlamaOptions, header: Header) -> None:
    """Choose kernels that are chosen once in a process, before the model is opened.

    Raises OptionError if exact decodes are asked for, and it is too late for that.
    """
    if not (options.exact and tiled_kernels.are_tiled(header)):
        tiled_kernels.use()
    elif not tiled_kernels.leave_out():
        raise OptionError(
            f"{header.path.name} cannot be exact in this process, whose kernels for several "
            "rows are in use",
            "Load it before any other model, or in a process of its own (IsolatedEngine), "
            "without GGML_CPU_TILED_MM in the environment.",
        )


def find_exactness(model: LlamaModel, options: LlamaOptions) -> Exactness:
    """Find out which decodes are exact: from the profile, or by a probe of 0.1 to 10 s.

    options: it was opened with. Raises OptionError if not all are.
    """
    profile = None
    if model.identity is not None:
        snapshots, count = options.num_snapshots or 0, options.num_sequences
        profile = Profile([model.identity, exactness_setting(snapshots, count)])
    kept = None if profile is None else profile.load()
    if kept is not None and kept.get("all_sizes") is True:
        joined = kept.get("joined") is True
        return Exactness(all_sizes=True, joined=joined, reason="")
    try:
        from localspec.llama.exact_probe import probe_exactness  # loads libllama

        found = probe_exactness(model.handle, options)
    except DecodeError as error:
        found = Exactness(reason=str(error))
    logger.info("exact decodes of %s: %s", model.name, found)
    if not found.all_sizes:
        raise OptionError(
            f"{model.name} cannot be exact here: {found.reason}",
            "Leave exact out: texts are then equal but for near ties. Files of the types "
            "Q8_0, Q4_0 and Q4_K_M were exact where they were measured (docs/lossless.md).",
        )
    if profile is not None:
        profile.save({"all_sizes": True, "joined": found.joined})
    return found
