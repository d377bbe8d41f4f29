"""Opens a model file with libllama: its weights, a context, and the parameters of both."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from localspec.errors import (
    ClosedError,
    EngineError,
    LocalspecError,
    ModelFileError,
    OptionError,
)
from localspec.gguf_file.adapter import AdapterFile
from localspec.gguf_file.tensor_types import type_number
from localspec.llama import native
from localspec.llama.context import LlamaContext
from localspec.llama.devices import device_pointers, list_devices
from localspec.llama.handle import Handle
from localspec.llama.library import Llama, complaints, llama_cpp, own_process
from localspec.llama.model_options import BATCH_SIZE, LlamaOptions, graph_batch_size, num_cells
from localspec.llama.placement import (
    default_gpus,
    experts_pattern,
    require_device,
    usable_gpus,
)
from localspec.llama.quirks.huge_pages import asking_for_huge_pages
from localspec.llama.rpc_backend import remote_pointers
from localspec.system.machine import num_usable_cores

_FLASH_ATTENTION = {
    "auto": "AUTO",
    "on": "ENABLED",
    "off": "DISABLED",
}
_adopted: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


Opened = TypeVar("Opened", bound=Handle | LlamaContext)


def open_watched(
    progress: Callable[[float], None],
    open_it: Callable[[native.LoadWatch], Opened],
) -> Opened:
    """Open with `open_it`; an exception of `progress`, or Ctrl-C, ends the load at once.

    Args:
        progress: Called with the loaded share, 0 … 1.
        open_it: Loads, and reports to its argument.

    Raises:
        EngineError: In a fork of a process that has loaded libllama.
    """
    own_process.require("libllama")
    opened = None
    with native.LoadWatch(asking_for_huge_pages(progress)) as watch:
        try:
            opened = open_it(watch)
        except LocalspecError:
            if watch.error is None:
                raise
    if watch.error is not None:
        if opened is not None:
            opened.close()
        raise watch.error
    assert opened is not None
    return opened


def model_params(options: LlamaOptions) -> Any:
    """llama_model_params, which keep alive what they point to.

    Raises OptionError for a GPU that does not exist.
    """
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = bool(options.with_head)
    params.use_extra_bufts = options.repack is not False
    if options.num_gpu_layers is not None:
        params.n_gpu_layers = options.num_gpu_layers
    if options.rpc or options.device is not None:
        devices: list[int | None] = []
        if options.rpc:
            devices += remote_pointers(options.rpc)
        devices += [*_pointers_here(options), None]
        _point_to(params, "devices", (ctypes.c_void_p * len(devices))(*devices))
    elif options.num_gpu_layers == 0:
        # Without an empty list, libllama takes GPU memory even so, to compute prompts there,
        # and does not repack weights for the processor.
        _point_to(params, "devices", (ctypes.c_void_p * 1)(None))
    if options.num_cpu_moe_layers:
        name = "ggml_backend_cpu_buffer_type"
        main_memory = native.ggml_function(llama_cpp, name, ctypes.c_void_p)()
        pattern = experts_pattern(options.num_cpu_moe_layers)
        experts = _BufferOverride(pattern.encode(), main_memory)
        _point_to(params, "tensor_buft_overrides", (_BufferOverride * 2)(experts))
    if options.main_gpu is not None:
        gpus = usable_gpus(list_devices(llama_cpp))
        names = [gpus[index].name for index in default_gpus(gpus)]
        if names and options.main_gpu >= len(names):  # without a GPU, the processor computes
            listed = ", ".join(f"{index} for {name}" for index, name in enumerate(names))
            raise OptionError(
                f"there is no GPU {options.main_gpu}",
                f"Choose main_gpu=N: {listed}.",
            )
        params.main_gpu = options.main_gpu
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE  # otherwise it is ignored
    if options.tensor_split:
        shares = (ctypes.c_float * llama_cpp.llama_max_devices())(*options.tensor_split)
        params.tensor_split = shares
    if options.use_mmap is not None or options.use_mlock:
        params.load_mode = _load_mode(options)
    return params


def _load_mode(options: LlamaOptions) -> Any:
    """libllama's way to load weights."""
    if options.use_mmap is False:
        if options.use_mlock:
            return llama_cpp.LLAMA_LOAD_MODE_MLOCK
        return llama_cpp.LLAMA_LOAD_MODE_NONE
    if options.use_mlock:
        return llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK
    return llama_cpp.LLAMA_LOAD_MODE_MMAP


def _pointers_here(options: LlamaOptions) -> list[int]:
    """ggml's pointers to the GPUs of this machine that the options name.

    Raises OptionError for a device that does not exist.
    """
    known = list_devices(llama_cpp)
    gpus = usable_gpus(known)
    wanted = [gpus[index].name for index in default_gpus(gpus)]
    if options.device is not None:
        require_device(options.device, gpus)
        wanted = [options.device]
    pointers = zip(device_pointers(llama_cpp), known, strict=True)
    return [pointer for pointer, device in pointers if device.name in wanted]


class _BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override. An array of them ends with an element of nulls."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _point_to(params: Any, field: str, array: Any) -> None:
    """Set a field that llama-cpp-python has as an untyped pointer; keep the array alive."""
    setattr(params, field, ctypes.addressof(array))
    setattr(params, f"{field}_array", array)  # kept by Python: the field holds a number


@contextmanager
def loaded_weights(path: Path, options: LlamaOptions, watch: native.LoadWatch) -> Iterator[int]:
    """libllama's pointer to the model in a file, which is freed if the block fails.

    Raises, with libllama's own words, ModelFileError if it refuses the file and
    MemoryLimitError if memory runs out; OptionError for a GPU that does not exist.
    """
    complaints.clear()
    params = model_params(options)
    params.progress_callback = llama_cpp.llama_progress_callback(watch.on_progress)
    model: int | None = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise complaints.as_error(
            f"libllama cannot load {path}",
            "The file may be damaged or newer than this llama-cpp-python.",
        )
    try:
        yield model
    except BaseException:
        llama_cpp.llama_model_free(model)
        raise


def loaded_adapters(model: int, adapters: Sequence[AdapterFile]) -> list[Any]:
    """libllama's pointers to the adapters of a model, which are freed with it.

    Call it before a context of the model is made: the context's graph needs room for them.

    Raises, with libllama's own words, ModelFileError if it refuses a file, and
    MemoryLimitError.
    """
    pointers = []
    for adapter in adapters:
        complaints.clear()
        pointer = llama_cpp.llama_adapter_lora_init(model, os.fsencode(adapter.path))
        if not pointer:
            raise complaints.as_error(
                f"libllama cannot load the adapter {adapter.path}",
                "The file may be damaged or newer than this llama-cpp-python.",
            )
        pointers.append(pointer)
    return pointers


def context_params(options: LlamaOptions, context_length: int) -> Any:
    """llama_context_params."""
    params = llama_cpp.llama_context_default_params()
    # Each sequence has its own cells, so its decodes equal those of a context for one sequence,
    # to the bit. With shared cells, attention would read those of other sequences, too.
    params.n_seq_max = options.num_sequences
    params.n_ctx = num_cells(context_length) * options.num_sequences
    # libllama ends the process if a batch or its rows are fewer than the sequences, or than the
    # cells of a picture that is read at once.
    at_once = options.num_picture_cells
    params.n_batch = max(min(BATCH_SIZE, context_length), options.num_sequences, at_once)
    params.n_ubatch = max(graph_batch_size(options.flash_attention, context_length), at_once)
    params.n_outputs_max = options.most_outputs
    params.n_rs_seq = options.num_snapshots or 0
    params.n_threads = options.num_threads or num_usable_cores()
    # By default the same number: otherwise decodes of one and of several tokens would run on
    # different cores, and verifying would not have the measured cost.
    params.n_threads_batch = options.num_batch_threads or params.n_threads
    flash_attention = _FLASH_ATTENTION[options.flash_attention]
    params.flash_attn_type = getattr(llama_cpp, f"LLAMA_FLASH_ATTN_TYPE_{flash_attention}")
    for field, name in (("type_k", options.cache_type_k), ("type_v", options.cache_type_v)):
        if name is not None:
            setattr(params, field, type_number(name))
    return params


def new_context(model: int, name: str, params: Any) -> int:
    """libllama's pointer to a context of a model. params: its llama_context_params.

    Raises ModelFileError or MemoryLimitError, with libllama's own words.
    """
    context: int | None = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise complaints.as_error(
            f"no context of {params.n_ctx} tokens for {name}",
            'A cache type may need flash attention (flash_attention="on").',
        )
    return context


def adopted_handle(llama: Llama) -> Handle:
    """The pointers of an application's `Llama`, emptied.

    Raises ModelFileError if it computes embeddings or holds no weights, EngineError if it is
    closed, another engine works on it, or this is a fork.
    """
    own_process.require("libllama")
    if llama.ctx is None:
        raise ClosedError("the Llama object is closed", "Create it again.")
    if llama.context_params.embeddings or llama.model_params.vocab_only:
        raise ModelFileError(
            f"the Llama object of {llama.model_path} computes embeddings or has no weights",
            "Create it without embedding=True and vocab_only=True.",
        )
    other = _adopted.get(llama.ctx)
    if other is not None and other.context is not None:
        raise EngineError(
            f"the Llama object of {llama.model_path} is in another engine",
            "Close that engine first; one object holds one text.",
        )
    llama.reset()  # type: ignore[no-untyped-call]
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)  # noqa: FBT003
    handle = Handle(llama.ctx, Path(llama.model_path).name, adopted_llama=llama)
    _adopted[llama.ctx] = handle
    return handle
