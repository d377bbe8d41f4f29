"""libllama in this process, initialised. Other modules of this package import it from here."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any

from localspec.errors import OptionError
from localspec.llama import loaded, native
from localspec.llama.devices import Device, list_devices
from localspec.llama.loaded import Llama as Llama
from localspec.llama.loaded import llama_cpp as llama_cpp
from localspec.llama.quirks import amx
from localspec.system.fork_guard import OwnProcess

complaints = native.capture_logs(llama_cpp)
native.load_backends(llama_cpp, loaded.library)
amx_verdict = amx.leave_out_unless_right(llama_cpp)
stop_callback = native.new_stop_callback(llama_cpp)
_kept: list[object] = []  # callbacks, since C has pointers to them
own_process = OwnProcess()  # the process of libllama's threads and devices


def devices() -> tuple[Device, ...]:
    """The devices that this build of libllama can compute on."""
    return list_devices(llama_cpp)


def report_aborts(tell: Callable[[str], None]) -> None:
    """Call `tell`, from any thread, with the reason before libllama ends the process."""

    def report(words: bytes) -> None:
        tell(words.decode(errors="replace"))

    kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    callback = kind(report)
    _kept.append(callback)
    set_it = native.ggml_function(llama_cpp, "ggml_set_abort_callback", ctypes.c_void_p, kind)
    set_it(callback)


def kernels() -> str:
    """libllama and the processor, which decide the kernels, in words."""
    processor = platform.processor() or platform.machine()
    return f"{loaded.library.origin}, {system_info()} · {processor}"


def system_info() -> str:
    """The features of this processor that libllama's kernels use, in its own words."""
    info: bytes = llama_cpp.llama_print_system_info()
    words = info.decode(errors="replace").strip(" |")
    if amx_is_left_out():
        return words.replace(" | AMX_INT8 = 1", "")
    return words


def amx_is_left_out() -> bool:
    """Whether libllama has AMX kernels that are not used."""
    return amx_verdict in (amx.AmxTrial.WRONG, amx.AmxTrial.UNTRIED)


def mtmd() -> Any:
    """libmtmd, which reads pictures. Raises OptionError if llama-cpp-python lacks it."""
    try:
        mtmd_cpp = loaded.load_mtmd()
    except (ImportError, OSError, RuntimeError) as error:
        raise OptionError(
            f"this llama-cpp-python cannot read images: {error}",
            "Build it with image support: CMAKE_ARGS=-DLLAVA_BUILD=on python -m pip install "
            "--force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.4'",
        ) from error
    mtmd_cpp.mtmd_helper_log_set(complaints.callback, None)  # libmtmd has its own log
    return mtmd_cpp
