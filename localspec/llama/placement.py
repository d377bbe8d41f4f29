"""Placement of a model's layers: on GPUs, or in main memory.

libllama puts the last num_gpu_layers of a model on GPUs, whether they fit or not; the output
counts as the last layer. The default is all layers; `localspec.load` chooses as many as fit
(`planning.plan`). Several GPUs share the layers by their free memory, or as `tensor_split`
says. Devices of RPC servers count as GPUs and come before those of this machine, as in
llama.cpp: so the output is here if there is a GPU here. The token embeddings stay in main
memory, and so do the experts of the first num_cpu_moe_layers.

Follows llama_model_base::load_tensors, llama_prepare_model_devices and llm_tensor_infos.
"""

from __future__ import annotations

import bisect
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import OptionError
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape, block_of
from localspec.llama.devices import REMOTE, Device, gpus_of_drivers, hiding_variable
from localspec.llama.model_options import LlamaOptions

_EXPERTS = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # as --cpu-moe of llama.cpp has it
_ANY_EXPERTS = re.compile(_EXPERTS.format(r"(\d+)"))
_INPUT = re.compile(r"(token_|position_|per_layer_)")
_NUM_COPIES = 4  # of a graph's inputs, if several GPUs pipeline a batch
MAIN_MEMORY = -1  # a layer's place; the other places are numbers of GPUs


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of each layer, and then the place of the output."""

    layers: tuple[int, ...]
    num_gpus: int
    """All GPUs, used or not."""

    num_input_copies: int
    """Copies made of a graph's inputs."""

    num_cpu_moe_layers: int
    """First layers whose experts are in main memory, wherever their other weights are."""

    def gpu_layers(self) -> tuple[int, ...]:
        """The number of layers on each GPU; the output counts as one."""
        return tuple(self.layers.count(gpu) for gpu in range(self.num_gpus))

    def computes_on(self, place: int) -> bool:
        """Whether the place has a layer other than the output, or experts of a layer."""
        takes_experts = place == MAIN_MEMORY and self.num_cpu_moe_layers > 0
        return takes_experts or place in self.layers[:-1]

    def zeros(self) -> list[int]:
        """A zero for each place; [MAIN_MEMORY] is the last one."""
        return [0] * (self.num_gpus + 1)

    def weights_bytes(self, header: Header, *, with_head: bool) -> list[int]:
        """Bytes of weights in each place, with those of a head or without."""
        sizes = self.zeros()
        shape = ModelShape(header)
        names = {tensor.name for tensor in header.tensors}
        for tensor in header.tensors:
            if not with_head and shape.is_head_tensor(tensor.name):
                continue
            sizes[self._place(tensor.name)] += tensor.size_bytes
            # If the embeddings are also the output layer, and that is on a GPU, they are
            # copied.
            is_head = tensor.name == "token_embd.weight" and "output.weight" not in names
            if is_head and self.layers[-1] != MAIN_MEMORY:
                sizes[self.layers[-1]] += tensor.size_bytes
        return sizes

    def _place(self, name: str) -> int:
        experts = _ANY_EXPERTS.match(name)
        if experts and int(experts[1]) < self.num_cpu_moe_layers:
            return MAIN_MEMORY
        block = block_of(name)
        if block is not None:
            return self.layers[min(block, len(self.layers) - 1)]
        if _INPUT.match(name):
            return MAIN_MEMORY
        return self.layers[-1]

    def read_share(self, header: Header) -> float:
        """The part of a token's weights that GPUs read: 0 (none) … 1 (all)."""
        shape = ModelShape(header)
        share_of_experts = 1.0
        num_experts = header.number(f"{header.architecture}.expert_count")
        if num_experts:
            share_of_experts = shape.num_experts_used / num_experts
        on_gpus = 0.0
        total = 0.0
        for tensor in header.tensors:
            if shape.is_head_tensor(tensor.name) or _INPUT.match(tensor.name):
                continue  # a token reads only one row of an input
            size: float = tensor.size_bytes
            if _ANY_EXPERTS.match(tensor.name):
                size *= share_of_experts
            total += size
            if self._place(tensor.name) != MAIN_MEMORY:
                on_gpus += size
        if total:
            return on_gpus / total
        return 0.0


def experts_pattern(num_layers: int) -> str:
    """A regular expression for the names of the first layers' experts."""
    numbers = "|".join(str(number) for number in range(num_layers))
    return _EXPERTS.format(f"({numbers})")


def has_experts(header: Header) -> bool:
    """Whether the model has experts, which could stay in main memory."""
    return any(_ANY_EXPERTS.match(tensor.name) for tensor in header.tensors)


def usable_gpus(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs that libllama can use, in its order; integrated ones after all others."""
    gpus = tuple(device for device in devices if device.kind == "GPU")
    return gpus + tuple(device for device in devices if device.kind == "integrated GPU")


def default_gpus(gpus: Sequence[Device]) -> list[int]:
    """Numbers of the GPUs of this machine that libllama uses if none is named.

    Integrated ones are used only if there are no others.

    Args:
        gpus: The GPUs of `usable_gpus`.
    """
    here = [index for index, gpu in enumerate(gpus) if not gpu.server]
    dedicated = [index for index in here if gpus[index].kind == "GPU"]
    return dedicated or here


def named_devices(used: Sequence[Device], helping: Sequence[Device]) -> str:
    """The devices that compute, in words.

    Args:
        used: The GPUs that have layers; none for the processor.
        helping: The GPU that computes large batches of layers in main memory, if any.
    """
    names = " and ".join(f"{gpu.name} ({gpu.description})" for gpu in used) or "CPU"
    if helping:
        gpu = helping[0]
        names += f", with {gpu.name} ({gpu.description}) for large batches"
    return names


def require_device(name: str, gpus: Sequence[Device]) -> None:
    """Raise OptionError if none of the GPUs has that name."""
    if any(gpu.name == name for gpu in gpus):
        return
    hint = "Choose cpu: there is no other."
    if gpus:
        listed = ", ".join(f"{gpu.name} ({gpu.description})" for gpu in gpus)
        hint = f"Choose cpu, or one of: {listed}."
    raise OptionError(f"there is no device {name!r}", hint)


def unused_gpu(gpus: Sequence[Device], num_gpu_layers: int | None) -> str:
    """A GPU of this machine that has no layer, and why, in words; "" without a GPU.

    Args:
        gpus: The GPUs of `usable_gpus`.
        num_gpu_layers: The number that was asked for.
    """
    names = [gpu.description for gpu in gpus] or gpus_of_drivers()
    if not names:
        return ""
    variable = hiding_variable()
    if num_gpu_layers == 0:
        reason = "num_gpu_layers=0"
    elif gpus:
        reason = "too little of its memory is free"
    elif variable is not None:
        reason = f"{variable} hides it"
    else:
        reason = "this build of llama.cpp cannot compute on it"
    return f"{names[0]} is not used: {reason}"


def is_in_main_memory(gpu: Device) -> bool:
    """Whether a GPU has no memory of its own. Apple's GPUs have none, though of kind "GPU"."""
    return gpu.kind != REMOTE and (gpu.kind == "integrated GPU" or sys.platform == "darwin")


def chosen_gpus(gpus: Sequence[Device], options: LlamaOptions) -> list[int]:
    """Numbers of the GPUs that hold a part of a model with these options."""
    if options.num_gpu_layers == 0:
        return []
    here = default_gpus(gpus)
    if options.device is not None:
        here = []
        for number, gpu in enumerate(gpus):
            if gpu.name == options.device and not gpu.server:
                here.append(number)
    if options.main_gpu is not None:
        return here[options.main_gpu : options.main_gpu + 1]
    chosen = []
    for address in options.rpc:
        for number, gpu in enumerate(gpus):
            if gpu.server == address:
                chosen.append(number)
    return [*chosen, *here]


def place_layers(
    header: Header,
    options: LlamaOptions,
    gpus: Sequence[Device],
    free_bytes: Sequence[int],
) -> Placement:
    """Place the layers.

    Args:
        header: The model's header.
        options: The options with which it is opened.
        gpus: The GPUs of `usable_gpus`.
        free_bytes: The free memory of each GPU.
    """
    chosen = chosen_gpus(gpus, options)
    num_layers = ModelShape(header).num_blocks + 1
    if not chosen:
        return Placement((MAIN_MEMORY,) * num_layers, len(gpus), 1, 0)
    num_placed = min(num_layers, options.num_gpu_layers or num_layers)
    shares = [float(free_bytes[number]) for number in chosen]
    if any(options.tensor_split[: len(chosen)]):
        padding = [0.0] * len(chosen)
        shares = [*options.tensor_split, *padding][: len(chosen)]
    if not any(shares):
        shares = [1.0] * len(chosen)
    borders = list(itertools.accumulate(shares))
    layers = [MAIN_MEMORY] * (num_layers - num_placed)
    for index in range(num_placed):
        position = borders[-1] * index / num_placed
        layers.append(chosen[bisect.bisect_right(borders, position)])
    experts = 0
    if has_experts(header):
        experts = min(num_layers, options.num_cpu_moe_layers or 0)
    copies = 1
    if len(chosen) > 1 and num_placed == num_layers and not experts:
        copies = _NUM_COPIES  # the GPUs pipeline a batch
    return Placement(tuple(layers), len(gpus), copies, experts)


def is_on_gpus(header: Header, options: LlamaOptions, gpus: Sequence[Device]) -> bool:
    """Whether GPUs compute every layer, so that the number of threads has no effect."""
    placement = place_layers(header, options, gpus, (1,) * len(gpus))
    return not placement.computes_on(MAIN_MEMORY)
