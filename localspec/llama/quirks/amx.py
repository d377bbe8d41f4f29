"""Uses ggml's AMX kernels only where a trial shows that they compute correctly.

A source build on a Linux processor with AMX has them. GCC 12 drops all but the first bytes of
the tile configuration in ggml_tile_config_init as dead stores (its ldtilecfg is said to read
eight bytes), and the first product of a batch ends the process. Where they are right they
decode a quantised model more than twice as fast as the AVX-512 kernels (docs/performance.md).

Remove it, and `amx_trial`, when the oldest supported llama-cpp-python has a ggml that writes
that configuration so that no compiler drops it, or can no longer be built by GCC 12.

The function takes the llama_cpp module: `llama/loaded.py` alone imports it.
"""

from __future__ import annotations

import sys
from typing import Any

from localspec.llama import native
from localspec.llama.quirks import amx_trial
from localspec.llama.quirks.own_process import written_by


def leave_out_if_wrong(lib: Any) -> bool:
    """Keep ggml from placing weights where faulty kernels would multiply them.

    Returns whether that was necessary. The kernels are tried in another process.
    """
    if (
        not sys.platform.startswith("linux")
        or b"AMX_INT8 = 1" not in lib.llama_print_system_info()
    ):
        return False
    ggml = native.shared_library(lib)
    if written_by(amx_trial.__file__, ggml._name) == amx_trial.RIGHT:
        return False
    buffer_types = amx_trial.extra_buffer_types(ggml)
    kept = [
        buffer_type
        for buffer_type in amx_trial.listed(buffer_types)
        if amx_trial.name_of(ggml, buffer_type) != amx_trial.BUFFER_TYPE
    ]
    for index, buffer_type in enumerate([*kept, None]):
        buffer_types[index] = buffer_type
    return True
