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
# The handles of adopted `Llama` objects, by libllama's pointers to their contexts.
_adopted: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()


Opened = TypeVar("Opened", bound=Handle | LlamaContext)


def open_watched(
    progress: Callable[[float], None],
    load: Callable[[native.LoadWatch], Opened],
) -> Opened:
    """What `load` returns; an exception of `progress`, or Ctrl-C, ends the load at once.

    Args:
        progress: Called with the loaded share, 0 … 1.
        load: Loads a file. It has to pass its argument's `on_progress` to libllama.

    Raises:
        EngineError: In a fork of a process that has loaded libllama. Besides, what `progress`
            and `load` raise, and KeyboardInterrupt after Ctrl-C.
    """
    own_process.require("libllama")
    opened = None
    with native.LoadWatch(asking_for_huge_pages(progress)) as watch:
        try:
            opened = load(watch)
        except LocalspecError:
            if watch.error is None:
                raise
            # Only the consequence of `watch.error`, which is raised below.
    if watch.error is not None:
        if opened is not None:
            opened.close()
        raise watch.error
    assert opened is not None
    return opened


def model_params(options: LlamaOptions) -> Any:
    """The llama_model_params of the options. They keep alive the arrays that they point to.

    Raises OptionError for a GPU that does not exist, RpcError for a server without a device.
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
        devices += _local_pointers(options)
        devices.append(None)  # the array's end
        _point_to(params, "devices", (ctypes.c_void_p * len(devices))(*devices))
    elif options.num_gpu_layers == 0:
        # An empty list of devices. Without it, libllama takes GPU memory even so, to compute
        # prompts there, and does not repack weights for the processor.
        _point_to(params, "devices", (ctypes.c_void_p * 1)(None))
    if options.num_cpu_moe_layers:
        name = "ggml_backend_cpu_buffer_type"
        buffer_type_function = native.ggml_function(llama_cpp, name, ctypes.c_void_p)
        main_memory = buffer_type_function()
        pattern = experts_pattern(options.num_cpu_moe_layers)
        experts = _BufferOverride(pattern.encode(), main_memory)
        overrides = (_BufferOverride * 2)(experts)  # the second one ends the array
        _point_to(params, "tensor_buft_overrides", overrides)
    if options.main_gpu is not None:
        _require_main_gpu(options.main_gpu)
        params.main_gpu = options.main_gpu
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE  # otherwise main_gpu is ignored
    if options.tensor_split:
        most_devices = llama_cpp.llama_max_devices()
        params.tensor_split = (ctypes.c_float * most_devices)(*options.tensor_split)
    if options.use_mmap is not None or options.use_mlock:
        params.load_mode = _load_mode(options)
    return params


def _require_main_gpu(main_gpu: int) -> None:
    """Raise OptionError if there are GPUs here, but none with the number `main_gpu`.

    Without any GPU the processor computes, whatever the number.
    """
    gpus = usable_gpus(list_devices(llama_cpp))
    names = [gpus[index].name for index in default_gpus(gpus)]
    if names and main_gpu >= len(names):
        choices = ", ".join(f"{index} for {name}" for index, name in enumerate(names))
        raise OptionError(f"there is no GPU {main_gpu}", f"Choose main_gpu=N: {choices}.")


def _load_mode(options: LlamaOptions) -> Any:
    """libllama's number for how weights are loaded. Memory mapping is its default."""
    if options.use_mmap is False:
        if options.use_mlock:
            return llama_cpp.LLAMA_LOAD_MODE_MLOCK
        return llama_cpp.LLAMA_LOAD_MODE_NONE
    if options.use_mlock:
        return llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK
    return llama_cpp.LLAMA_LOAD_MODE_MMAP


def _local_pointers(options: LlamaOptions) -> list[int]:
    """ggml's pointers to the GPUs of this machine that a model uses with these options.

    Raises OptionError for a device that does not exist.
    """
    devices = list_devices(llama_cpp)
    gpus = usable_gpus(devices)
    if options.device is None:
        names = [gpus[index].name for index in default_gpus(gpus)]
    else:
        require_device(options.device, gpus)
        names = [options.device]
    pointers = []
    for pointer, device in zip(device_pointers(llama_cpp), devices, strict=True):
        if device.name in names:
            pointers.append(pointer)
    return pointers


class _BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override. An array of them ends with an element of nulls."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _point_to(params: Any, field: str, array: Any) -> None:
    """Let a field of params, an untyped pointer in llama-cpp-python, point to an array."""
    setattr(params, field, ctypes.addressof(array))
    # The field is only a number for Python, so another attribute keeps the array alive.
    setattr(params, f"{field}_array", array)


@contextmanager
def loaded_weights(path: Path, options: LlamaOptions, watch: native.LoadWatch) -> Iterator[int]:
    """A block with libllama's pointer to the model in a file.

    If the block raises, the model is freed; else the caller has to free it.

    Args:
        path: The model's file.
        options: The settings.
        watch: Gets the progress, and may end the load.

    Raises:
        ModelFileError: If libllama refuses the file, with libllama's reason.
        MemoryLimitError: If memory runs out, with libllama's reason.
        OptionError: For a GPU that does not exist.
        RpcError: For a server without a device.
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
    """Load the LoRA adapters of a model. Returns libllama's pointers, which the model frees.

    Call it before a context of the model is made: the context's graph needs room for them.

    Args:
        model: libllama's pointer to the model.
        adapters: The adapters.

    Raises:
        ModelFileError: If libllama refuses a file, with libllama's reason.
        MemoryLimitError: If memory runs out, with libllama's reason.
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
    """The llama_context_params of the options. context_length: tokens of each sequence."""
    params = llama_cpp.llama_context_default_params()
    # Each sequence has its own cells, so its decodes equal those of a context for one sequence,
    # to the bit. With shared cells, attention would read those of other sequences, too.
    params.n_seq_max = options.num_sequences
    params.n_ctx = num_cells(context_length) * options.num_sequences
    # libllama ends the process if a batch has fewer tokens or rows of logits than there are
    # sequences, or fewer tokens than a picture that is read at once has cells.
    num_picture_cells = options.num_picture_cells
    text_size = min(BATCH_SIZE, context_length)
    params.n_batch = max(text_size, options.num_sequences, num_picture_cells)
    graph_size = graph_batch_size(options.flash_attention, context_length)
    params.n_ubatch = max(graph_size, num_picture_cells)
    params.n_outputs_max = options.most_outputs
    params.n_rs_seq = options.num_snapshots or 0
    params.n_threads = options.num_threads or num_usable_cores()
    # By default the same number for decodes of several tokens: otherwise they would run on
    # other cores than decodes of one token, and verifying would not have the measured cost.
    params.n_threads_batch = options.num_batch_threads or params.n_threads
    flash_attention = _FLASH_ATTENTION[options.flash_attention]
    params.flash_attn_type = getattr(llama_cpp, f"LLAMA_FLASH_ATTN_TYPE_{flash_attention}")
    for field, name in (("type_k", options.cache_type_k), ("type_v", options.cache_type_v)):
        if name is not None:
            setattr(params, field, type_number(name))
    return params


def new_context(model: int, name: str, params: Any) -> int:
    """Make a context of a model. Returns libllama's pointer to it.

    Args:
        model: libllama's pointer to the model.
        name: What an error calls the model.
        params: The llama_context_params.

    Raises:
        ModelFileError: If libllama refuses the parameters, with libllama's reason.
        MemoryLimitError: If memory runs out, with libllama's reason.
    """
    context: int | None = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise complaints.as_error(
            f"no context of {params.n_ctx} tokens for {name}",
            'A cache type may need flash attention (flash_attention="on").',
        )
    return context


def adopted_handle(llama: Llama) -> Handle:
    """A handle of an application's `Llama`, whose cache is emptied.

    Raises:
        ModelFileError: If the object computes embeddings or holds no weights.
        EngineError: If it is closed, another engine works on it, or this process is a fork.
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
