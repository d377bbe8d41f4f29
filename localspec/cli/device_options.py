"""Options that say how the models are opened: threads, devices, caches."""

from __future__ import annotations

from typing import Any, get_args

import click

from localspec.llama.options import ALL_LAYERS, CacheType, FlashAttention, LlamaOptions
from localspec.rpc_address import checked_addresses


class RpcServers(click.ParamType):  # type: ignore[type-arg]
    """Addresses of RPC servers with commas between them; "none" is no server."""

    name = "RPC servers"

    def convert(
        self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None
    ) -> tuple[str, ...] | None:
        if value is None or isinstance(value, tuple):
            return value
        return () if value == "none" else checked_addresses(value.split(","))


class Shares(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them."""

    name = "shares"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(share) for share in value.split(","))
        except ValueError:
            self.fail(f"{value} is no list of numbers, as in 3,1", param, ctx)


RPC_OPTION = click.option(
    "--rpc",
    type=RpcServers(),
    metavar="HOST:PORT,…",
    help="llama.cpp's RPC servers that hold layers of the target, too. [default: the preset's]",
)

TENSOR_SPLIT_OPTION = click.option(
    "--tensor-split",
    type=Shares(),
    default=(),
    metavar="A,B,…",
    help="Shares of the RPC servers, then of the GPUs, in their order. [default: as they have "
    "memory]",
)

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
    RPC_OPTION,
    TENSOR_SPLIT_OPTION,
]
NAMES = (
    "threads", "threads_batch", "draft_threads", "gpu_layers", "draft_gpu_layers", "cpu_moe",
    "flash_attn", "cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v",
    "mmap", "mlock", "main_gpu", "rpc", "tensor_split",
)  # fmt: skip


def take_model_options(values: dict[str, Any]) -> tuple[LlamaOptions, LlamaOptions]:
    """Remove the options above but rpc from a command's values: those of target and draft.

    Raises OptionError for a value outside its range.
    """
    given = {name: values.pop(name) for name in NAMES if name != "rpc"}
    common: dict[str, Any] = {
        "tensor_split": given["tensor_split"],
        "num_batch_threads": given["threads_batch"],
        "flash_attention": given["flash_attn"],
        "use_mmap": given["mmap"],
        "use_mlock": given["mlock"],
        "main_gpu": given["main_gpu"],
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
