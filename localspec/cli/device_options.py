"""Options that say how the models are opened: threads, devices, caches."""

from __future__ import annotations

from typing import Any, get_args

import click

from localspec.llama.options import ALL_LAYERS, CacheType, FlashAttention, LlamaOptions

_CACHE_TYPE = click.Choice(get_args(CacheType))

OPTIONS = [
    click.option("--threads", type=int, help="CPU threads. [default: one a fast core]"),
    click.option(
        "--threads-batch", type=int, help="CPU threads for prompts. [default: --threads]"
    ),
    click.option(
        "--draft-threads", type=int, help="CPU threads of a draft model. [default: --threads]"
    ),
    click.option(
        "--gpu-layers",
        type=int,
        help="Layers on GPUs; the others stay in main memory. [default: as many as fit]",
    ),
    click.option("--draft-gpu-layers", type=int, help="The draft's. [default: --gpu-layers]"),
    click.option(
        "--cpu-moe",
        is_flag=True,
        help="Keep the target's experts in main memory. [default: those that do not fit]",
    ),
    click.option(
        "--flash-attn",
        type=click.Choice(get_args(FlashAttention)),
        default="auto",
        show_default=True,
        help="Flash attention, of both; auto: off on a CPU, unless it saves much memory.",
    ),
    click.option("--cache-type-k", type=_CACHE_TYPE, help="Of cached keys. [default: f16]"),
    click.option("--cache-type-v", type=_CACHE_TYPE, help="Of cached values. [default: f16]"),
    click.option("--draft-cache-type-k", type=_CACHE_TYPE, help="The draft's. [default: f16]"),
    click.option("--draft-cache-type-v", type=_CACHE_TYPE, help="The draft's. [default: f16]"),
    click.option(
        "--mmap/--no-mmap",
        default=None,
        help="Map the files, or read them into memory. [default: large ones are mapped]",
    ),
    click.option("--mlock", is_flag=True, help="Keep the models from being swapped out."),
    click.option("--main-gpu", type=int, help="The one GPU to use. [default: all of them]"),
    click.option(
        "--tensor-split",
        metavar="A,B,…",
        help="Shares of the GPUs, in their order. [default: as they have memory]",
    ),
]
NAMES = (
    "threads", "threads_batch", "draft_threads", "gpu_layers", "draft_gpu_layers", "cpu_moe",
    "flash_attn", "cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v",
    "mmap", "mlock", "main_gpu", "tensor_split",
)  # fmt: skip


def take_model_options(values: dict[str, Any]) -> tuple[LlamaOptions, LlamaOptions]:
    """Remove the options above from a command's values: those of target and draft.

    Raises OptionError for a value outside its range, UsageError for an unreadable split.
    """
    given = {name: values.pop(name) for name in NAMES}
    common: dict[str, Any] = {
        "num_batch_threads": given["threads_batch"],
        "flash_attention": given["flash_attn"],
        "use_mmap": given["mmap"],
        "use_mlock": given["mlock"],
        "main_gpu": given["main_gpu"],
        "tensor_split": _shares(given["tensor_split"]),
    }
    target = LlamaOptions(
        num_threads=given["threads"],
        num_gpu_layers=given["gpu_layers"],
        num_cpu_moe_layers=ALL_LAYERS if given["cpu_moe"] else None,
        cache_type_k=given["cache_type_k"],
        cache_type_v=given["cache_type_v"],
        **common,
    )
    draft_threads, draft_layers = given["draft_threads"], given["draft_gpu_layers"]
    draft = LlamaOptions(
        num_threads=given["threads"] if draft_threads is None else draft_threads,
        num_gpu_layers=given["gpu_layers"] if draft_layers is None else draft_layers,
        cache_type_k=given["draft_cache_type_k"],
        cache_type_v=given["draft_cache_type_v"],
        **common,
    )
    return target, draft


def _shares(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise click.UsageError(
            f"--tensor-split {text} is no list of numbers, as in 3,1."
        ) from None
