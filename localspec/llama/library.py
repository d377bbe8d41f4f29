"""libllama as this process has it: the one file that imports llama_cpp."""

from __future__ import annotations

from localspec.fork_guard import OwnProcess
from localspec.llama import amx, native
from localspec.llama.devices import Device, list_devices
from localspec.llama.spinning import spinning_briefly

with spinning_briefly():
    import llama_cpp
    from llama_cpp import Llama

__all__ = ["Llama", "llama_cpp"]

complaints = native.capture_logs(llama_cpp)
amx_is_left_out = amx.leave_out_if_wrong(llama_cpp)
stop_callback = native.stop_callback(llama_cpp)
own_process = OwnProcess()  # whose threads and devices libllama has from now on


def devices() -> tuple[Device, ...]:
    """What this build of libllama can compute on."""
    return list_devices(llama_cpp)


def system_info() -> str:
    """What libllama's kernels use of this processor, in its own words."""
    found: bytes = llama_cpp.llama_print_system_info()
    words = found.decode(errors="replace").strip(" |")
    return words.replace(" | AMX_INT8 = 1", "") if amx_is_left_out else words
