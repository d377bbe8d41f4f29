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
own_process = OwnProcess()  # the process that has libllama's threads and devices


def devices() -> tuple[Device, ...]:
    """The devices that this build of libllama can compute on."""
    return list_devices(llama_cpp)


def report_aborts(report: Callable[[str], None]) -> None:
    """From now on, call `report` with the reason whenever libllama ends the process.

    It is called before the process ends, in any thread.
    """

    def on_abort(message: bytes) -> None:
        report(message.decode(errors="replace"))

    callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    callback = callback_type(on_abort)
    _kept.append(callback)
    name = "ggml_set_abort_callback"
    set_callback = native.ggml_function(llama_cpp, name, ctypes.c_void_p, callback_type)
    set_callback(callback)


def kernels() -> str:
    """The build of libllama and the processor, which decide the kernels, in words."""
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
    """Whether libllama has AMX kernels that are not used: see `quirks.amx`."""
    return amx_verdict in (amx.AmxTrial.WRONG, amx.AmxTrial.UNTRIED)


def stored_template(model: Any, name: bytes | None) -> str | None:
    """The text of a chat template in a model's file; None if the file has no such template.

    Args:
        model: libllama's pointer to the model.
        name: The template's name; None for the default template.
    """
    template: bytes | None = llama_cpp.llama_model_chat_template(model, name)
    if template:
        return template.decode("utf-8", errors="replace")
    return None


def mtmd() -> Any:
    """The module of llama_cpp for libmtmd, which reads pictures.

    Raises OptionError if llama-cpp-python lacks it.
    """
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
