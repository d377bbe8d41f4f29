"""Where libllama puts a model's layers: on GPUs, or in main memory.

libllama puts the last num_gpu_layers of a model on GPUs, whether they fit or not; the output
counts as the last layer. The default is all layers; `localspec.load` chooses as many as fit
(`planning.plan`). Several GPUs share the layers by their free memory, or as `tensor_split`
says. Devices of RPC servers count as GPUs and come before those of this machine, as in
llama.cpp: so the output is on this machine if it has a GPU. The token embeddings stay in main
memory, and so do the experts of the first num_cpu_moe_layers.

A *place* is the number of a GPU, or MAIN_MEMORY.

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
_INPUT = re.compile(r"(token_|position_|per_layer_)")  # tensors of which a token reads one row
_EMBEDDINGS = "token_embd.weight"
_OUTPUT = "output.weight"
_NUM_COPIES = 4  # of a graph's inputs, if several GPUs pipeline a batch
MAIN_MEMORY = -1  # a layer's place; the other places are numbers of GPUs


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of a model's layers."""

    layers: tuple[int, ...]
    """The place of each layer; the last entry is the place of the output."""

    num_gpus: int
    """All GPUs, used or not."""

    num_input_copies: int
    """Copies that libllama makes of a graph's inputs."""

    num_cpu_moe_layers: int
    """First layers whose experts are in main memory, wherever their other weights are."""

    def gpu_layers(self) -> tuple[int, ...]:
        """The number of layers on each GPU; the output counts as a layer."""
        return tuple(self.layers.count(gpu) for gpu in range(self.num_gpus))

    def computes_on(self, place: int) -> bool:
        """Whether the place has a layer other than the output, or experts of a layer."""
        has_experts = place == MAIN_MEMORY and self.num_cpu_moe_layers > 0
        return has_experts or place in self.layers[:-1]

    def zeros(self) -> list[int]:
        """A list with a 0 for each place: the GPUs', and last main memory's (index -1)."""
        return [0] * (self.num_gpus + 1)

    def weights_bytes(self, header: Header, *, with_head: bool) -> list[int]:
        """Bytes of weights in each place, in the order of `zeros`.

        Args:
            header: The model's header.
            with_head: Whether the weights of a head in the file are loaded, too.
        """
        sizes = self.zeros()
        shape = ModelShape(header)
        names = {tensor.name for tensor in header.tensors}
        output_place = self.layers[-1]
        for tensor in header.tensors:
            if not with_head and shape.is_head_tensor(tensor.name):
                continue
            place = self._place(tensor.name)
            sizes[place] += tensor.size_bytes
            # Embeddings that are also the output layer are copied to its GPU.
            is_output_too = tensor.name == _EMBEDDINGS and _OUTPUT not in names
            if is_output_too and output_place != MAIN_MEMORY:
                sizes[output_place] += tensor.size_bytes
        return sizes

    def _place(self, name: str) -> int:
        """The place of a tensor of that name."""
        experts = _ANY_EXPERTS.match(name)
        if experts and int(experts[1]) < self.num_cpu_moe_layers:
            return MAIN_MEMORY
        block = block_of(name)
        if block is not None:
            # The blocks of a head follow the model's, and go with the output.
            return self.layers[min(block, len(self.layers) - 1)]
        if _INPUT.match(name):
            return MAIN_MEMORY
        return self.layers[-1]

    def read_share(self, header: Header) -> float:
        """Of the weights that are read to decode a token, the share on GPUs: 0 … 1.

        A token reads only some of a layer's experts. The weights of a head, and tensors of
        which a token reads one row, are left out.
        """
        shape = ModelShape(header)
        used_share = 1.0  # of the experts
        num_experts = header.number(f"{header.architecture}.expert_count")
        if num_experts:
            used_share = shape.num_experts_used / num_experts
        gpu_bytes = 0.0
        total_bytes = 0.0
        for tensor in header.tensors:
            if shape.is_head_tensor(tensor.name) or _INPUT.match(tensor.name):
                continue
            size: float = tensor.size_bytes
            if _ANY_EXPERTS.match(tensor.name):
                size *= used_share
            total_bytes += size
            if self._place(tensor.name) != MAIN_MEMORY:
                gpu_bytes += size
        if total_bytes == 0:
            return 0.0
        return gpu_bytes / total_bytes


def experts_pattern(num_layers: int) -> str:
    """A regular expression for the names of the tensors of the first layers' experts."""
    numbers = "|".join(str(number) for number in range(num_layers))
    return _EXPERTS.format(f"({numbers})")


def has_experts(header: Header) -> bool:
    """Whether the model has experts, which could stay in main memory without their layers."""
    return any(_ANY_EXPERTS.match(tensor.name) for tensor in header.tensors)


def usable_gpus(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs that libllama can use, in its order; integrated ones after all others.

    Later functions know a GPU by its number: its index in this result, or in a list that has
    the devices of RPC servers before it.
    """
    dedicated = tuple(device for device in devices if device.kind == "GPU")
    integrated = tuple(device for device in devices if device.kind == "integrated GPU")
    return dedicated + integrated


def default_gpus(gpus: Sequence[Device]) -> list[int]:
    """Numbers of the GPUs of this machine that libllama uses if none is named.

    Integrated ones are used only if there are no others.

    Args:
        gpus: The GPUs of `usable_gpus`, perhaps after the devices of RPC servers.
    """
    local = [number for number, gpu in enumerate(gpus) if not gpu.server]
    dedicated = [number for number in local if gpus[number].kind == "GPU"]
    return dedicated or local


def named_devices(used: Sequence[Device], helping: Sequence[Device]) -> str:
    """The devices that compute, in words.

    Args:
        used: The GPUs that have layers; none for the processor.
        helping: The GPU that computes large batches of layers in main memory; empty without.
    """
    names = "CPU"
    if used:
        names = " and ".join(map(_described, used))
    if helping:
        names += f", with {_described(helping[0])} for large batches"
    return names


def _described(gpu: Device) -> str:
    """A GPU's name and description."""
    return f"{gpu.name} ({gpu.description})"


def require_device(name: str, gpus: Sequence[Device]) -> None:
    """Raise OptionError if none of the GPUs has that name."""
    if any(gpu.name == name for gpu in gpus):
        return
    hint = "Choose cpu: there is no other."
    if gpus:
        choices = ", ".join(map(_described, gpus))
        hint = f"Choose cpu, or one of: {choices}."
    raise OptionError(f"there is no device {name!r}", hint)


def unused_gpu(gpus: Sequence[Device], num_gpu_layers: int | None) -> str:
    """Which GPU is not used, and why, in words, for a model that has no layer on a GPU.

    Returns "" if there is no GPU.

    Args:
        gpus: The GPUs of `usable_gpus`.
        num_gpu_layers: The number of layers that was asked for; None without one.
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
    local = default_gpus(gpus)
    if options.device is not None:
        local = []
        for number, gpu in enumerate(gpus):
            if gpu.name == options.device and not gpu.server:
                local.append(number)
    if options.main_gpu is not None:  # no GPU if there are fewer
        return local[options.main_gpu : options.main_gpu + 1]
    remote = []
    for address in options.rpc:
        for number, gpu in enumerate(gpus):
            if gpu.server == address:
                remote.append(number)
    return [*remote, *local]


def place_layers(
    header: Header,
    options: LlamaOptions,
    gpus: Sequence[Device],
    free_bytes: Sequence[int],
) -> Placement:
    """Where libllama will put the layers of a model.

    Args:
        header: The model's header.
        options: The options with which it is opened.
        gpus: The devices of RPC servers, then the GPUs of `usable_gpus`.
        free_bytes: The free memory of each GPU.
    """
    numbers = chosen_gpus(gpus, options)
    num_layers = ModelShape(header).num_blocks + 1  # with the output
    if not numbers:
        return Placement((MAIN_MEMORY,) * num_layers, len(gpus), 1, 0)
    num_on_gpus = min(num_layers, options.num_gpu_layers or num_layers)
    # With the GPUs' shares side by side: the end of each. The layers lie on the whole length at
    # equal distances, and each goes to the GPU in whose share it begins.
    ends = list(itertools.accumulate(_gpu_shares(numbers, options, free_bytes)))
    layers = [MAIN_MEMORY] * (num_layers - num_on_gpus)
    for index in range(num_on_gpus):
        begin = ends[-1] * index / num_on_gpus
        gpu = bisect.bisect_right(ends, begin)
        layers.append(numbers[gpu])
    num_cpu_moe_layers = 0
    if has_experts(header):
        num_cpu_moe_layers = min(num_layers, options.num_cpu_moe_layers or 0)
    num_copies = 1
    if len(numbers) > 1 and num_on_gpus == num_layers and not num_cpu_moe_layers:
        num_copies = _NUM_COPIES  # the GPUs pipeline a batch
    return Placement(tuple(layers), len(gpus), num_copies, num_cpu_moe_layers)


def _gpu_shares(
    numbers: Sequence[int],
    options: LlamaOptions,
    free_bytes: Sequence[int],
) -> list[float]:
    """The share of the layers that each GPU gets, up to a common factor.

    As `tensor_split` says; else by free memory; else the same share for each.

    Args:
        numbers: The numbers of the GPUs that get layers.
        options: The options of the model.
        free_bytes: The free memory of all GPUs.
    """
    shares = list(options.tensor_split[: len(numbers)])
    if any(shares):
        num_missing = len(numbers) - len(shares)
        return shares + [0.0] * num_missing
    shares = [float(free_bytes[number]) for number in numbers]
    if any(shares):
        return shares
    return [1.0] * len(numbers)


def is_on_gpus(header: Header, options: LlamaOptions, gpus: Sequence[Device]) -> bool:
    """Whether GPUs compute every layer, so that the number of threads has no effect.

    Args:
        header: The model's header.
        options: The options with which it is opened.
        gpus: The devices of RPC servers, then the GPUs of `usable_gpus`.
    """
    same_free_bytes = (1,) * len(gpus)  # the result does not depend on them
    placement = place_layers(header, options, gpus, same_free_bytes)
    return not placement.computes_on(MAIN_MEMORY)
