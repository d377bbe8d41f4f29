"""Options for how models are opened: threads, devices, caches."""

from __future__ import annotations

from typing import Any

import click

from localspec.cli.flags import field_option, keyword_option
from localspec.llama.options import ALL_LAYERS, LlamaOptions
from localspec.rpc_address import checked_addresses


def parse_servers(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    """Comma-separated addresses of RPC servers; "none" means no server."""
    if text is None:
        return None
    return () if text == "none" else checked_addresses(text.split(","))


def _parse_shares(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(","))) if text is not None else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers, such as 3,1") from None


EXACT_OPTION = click.option(
    "--exact/--no-exact",
    default=None,
    help="Answer the same to the bit with any draft, number of threads or cached text, "
    "perhaps more slowly. [default: where it was found to take at most 3 % more time]",
)
RPC_OPTION = keyword_option(
    "rpc",
    "llama.cpp RPC servers that hold layers of the target, too. [default: the preset's]",
    callback=parse_servers,
    metavar="HOST:PORT,…",
)
TENSOR_SPLIT_OPTION = keyword_option(
    "tensor_split",
    "Shares of the RPC servers, then of the GPUs, in their order. [default: by free memory]",
    callback=_parse_shares,
    metavar="A,B,…",
)

# Fields of LlamaOptions.
_MODEL_FIELDS = {
    "num_threads": "CPU threads. [default: one per fast core]",
    "num_batch_threads": "CPU threads for prompts. [default: --threads]",
    "num_gpu_layers": "Layers on GPUs; the others stay in main memory. [default: as many as "
    "fit]",
    "flash_attention": "Flash attention, for both models; auto: off on a CPU, unless it saves "
    "much memory. [default: auto]",
    "cache_type_k": "Type of the cached keys. [default: f16]",
    "cache_type_v": "Type of the cached values. [default: f16]",
    "use_mlock": "Keep the models from being swapped out.",
    "main_gpu": "The one GPU to use. [default: all of them]",
}
# The same for the draft model alone.
_DRAFT_FIELDS = {
    "num_threads": "CPU threads of the draft model. [default: --threads]",
    "num_gpu_layers": "Layers of the draft model on GPUs. [default: --gpu-layers]",
    "cache_type_k": "Type of the draft model's cached keys. [default: f16]",
    "cache_type_v": "Type of the draft model's cached values. [default: f16]",
}

DEVICE_OPTIONS = [
    *(field_option(LlamaOptions, name, text) for name, text in _MODEL_FIELDS.items()),
    *(
        field_option(LlamaOptions, name, text, prefix="draft")
        for name, text in _DRAFT_FIELDS.items()
    ),
    click.option(
        "--cpu-moe",
        is_flag=True,
        help="Keep the target's experts in main memory. [default: those that do not fit]",
    ),
    click.option(
        "--mmap/--no-mmap",
        "use_mmap",
        default=None,
        help="Map the files, or read them into memory. [default: map large ones]",
    ),
    click.option(
        "--repack/--no-repack",
        default=None,
        help="Keep weights in an order that suits the processor. [default: yes, "
        "unless --exact needs another]",
    ),
    EXACT_OPTION,
    RPC_OPTION,
    TENSOR_SPLIT_OPTION,
]
DEVICE_NAMES = (
    *("num_threads", "num_batch_threads", "draft_num_threads"),
    *("num_gpu_layers", "draft_num_gpu_layers", "cpu_moe", "flash_attention"),
    *("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"),
    *("use_mmap", "use_mlock", "main_gpu", "rpc", "tensor_split", "repack", "exact"),
)


def take_model_options(values: dict[str, Any]) -> dict[str, LlamaOptions]:
    """Move the options above, except rpc, from a command's values to those of both models.

    Raises OptionError for a value outside its range.
    """
    given = {name: values.pop(name) for name in DEVICE_NAMES if name != "rpc"}
    given["flash_attention"] = given["flash_attention"] or "auto"
    exact = given.pop("exact")
    experts = ALL_LAYERS if given.pop("cpu_moe") else None
    of_draft = {name: given.pop(f"draft_{name}") for name in _DRAFT_FIELDS}
    for name in ("num_threads", "num_gpu_layers"):
        if of_draft[name] is None:
            of_draft[name] = given[name]
    return {
        "target_options": LlamaOptions(**given, num_cpu_moe_layers=experts, exact=exact),
        "draft_options": LlamaOptions(**given | of_draft),
    }
