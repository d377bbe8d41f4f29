"""What people have measured of models on processors and on GPUs, each with its public source.

Tokens a second. Reading is of prompts of some 512 tokens (llama-bench's pp512, unless it is
said otherwise), writing of single tokens (tg128). The figures of a machine are from reports of
that machine. Where a report has no speed of reading, writing alone is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Speed:
    """Tokens a second. reading: 0 where it was not reported."""

    reading: float
    writing: float


@dataclass(frozen=True)
class Machine:
    """A report.

    gpus: by a name; none where the machine has no GPU. splits: of the only GPU, with so many of
    `num_layers` layers on it, the output counted. most_layers: that fit there; None: all.
    """

    what: str
    source: str
    cpu: Speed
    gpus: dict[str, Speed] = field(default_factory=dict)
    splits: dict[int, Speed] = field(default_factory=dict)
    num_layers: int = 0
    most_layers: int | None = None


_NORMIEBENCH = "https://github.com/brand-o/normiebench/issues"
_SWEEP = "https://inventivehq.com/blog/vram-offload-cliff-gpu-layers-benchmark"
_SWEPT = {8: 3.58, 16: 4.24, 24: 5.61, 32: 7.26, 40: 12.5}
_LUNAR_LAKE = (
    "r/LocalLLaMA, llama.cpp ba6f62eb on a Core Ultra 7 258V; a copy: "
    "https://reddit.wdas.io/r/LocalLLaMA/search?q=memory+bandwidth&after=t3_1cmmob0"
)
_MACS = "https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference/issues/1"
_LM_STUDIO = "https://docs.fastflowlm.com/benchmarks/llama3_results.html, 1k tokens, LM Studio"
_ADRENO = (
    "https://forgejo.devinemarsa.com/pingu_98/q6a-llama-vulkan-patch/src/branch/main/"
    "benchmarks.md, prompts of 32 tokens"
)


def _swept(most_layers: int) -> Machine:
    return Machine(
        what=f"RTX 5060 Ti with memory for {most_layers} layers, Qwen2.5 Coder 14B Q4_K_M",
        source=_SWEEP,
        cpu=Speed(0, 2.89),
        gpus={"CUDA0": Speed(0, 43.18)},
        splits={count: Speed(0, writing) for count, writing in _SWEPT.items()},
        num_layers=49,
        most_layers=most_layers,
    )


MACHINES = (
    Machine(
        what="i5-8250U, UHD 620, Qwen3.5 2B",
        source="https://ozkanpakdil.github.io/posts/my_collections/2026/"
        "2026-03-22-vulkan-llamacpp-debian-13",
        cpu=Speed(0, 2.32),
        gpus={"Vulkan0": Speed(0, 6.07)},
    ),
    Machine(
        what="i7-1165G7, Iris Xe, Llama 2 7B Q4_K_M",
        source="https://github.com/ggml-org/llama.cpp/pull/5301 (easyfab, 4 February 2024)",
        cpu=Speed(10.08, 6.53),
        gpus={"Vulkan0": Speed(31.92, 5.54)},
    ),
    Machine(
        what="Core Ultra 7 258V, Arc 140V by Vulkan, Llama 2 7B Q4_0",
        source=_LUNAR_LAKE,
        cpu=Speed(25.05, 11.59),
        gpus={"Vulkan0": Speed(44.65, 5.54)},
    ),
    Machine(
        what="Core Ultra 7 258V, Arc 140V by SYCL, Llama 2 7B Q4_0",
        source=_LUNAR_LAKE,
        cpu=Speed(25.05, 11.59),
        gpus={"SYCL0": Speed(526.38, 13.51)},
    ),
    Machine(
        what="Ryzen 7 8840U, Radeon 780M with half of the memory, Llama 3.1 8B Q4_K_M",
        source=f"{_NORMIEBENCH}/8 and /10",
        cpu=Speed(49.75, 9.63),
        gpus={"Vulkan0": Speed(253.57, 16.31)},
    ),
    Machine(
        what="Ryzen 7 8840U, Radeon 780M with little memory, Llama 3.1 8B Q4_K_M",
        source=f"{_NORMIEBENCH}/8 and /6",
        cpu=Speed(49.75, 9.63),
        gpus={"Vulkan0": Speed(53.36, 9.76)},
    ),
    Machine(
        what="a Ryzen AI's integrated GPU, Llama 3.2 1B",
        source=_LM_STUDIO,
        cpu=Speed(0, 54.6),
        gpus={"Vulkan0": Speed(0, 28.7)},
    ),
    Machine(
        what="a Ryzen AI's integrated GPU, Llama 3.1 8B",
        source=_LM_STUDIO,
        cpu=Speed(0, 10.3),
        gpus={"Vulkan0": Speed(0, 11.3)},
    ),
    Machine(
        what="QCS6490, Adreno 643, Qwen3.5 0.8B Q4_K_M",
        source=_ADRENO,
        cpu=Speed(15.2, 12.2),
        gpus={"Vulkan0": Speed(21.2, 8.2)},
    ),
    Machine(
        what="QCS6490, Adreno 643, Qwen3.5 0.8B Q8_0",
        source=_ADRENO,
        cpu=Speed(13.0, 8.7),
        gpus={"Vulkan0": Speed(21.0, 7.5)},
    ),
    Machine(
        what="M2 Pro, Llama 2 7B Q4_0",
        source=_MACS,
        cpu=Speed(1000 / 16.99, 1000 / 47.81),
        gpus={"MTL0": Speed(1000 / 5.90, 1000 / 28.91)},
    ),
    Machine(
        what="M2 Pro, Llama 2 7B F16",
        source=_MACS,
        cpu=Speed(1000 / 17.19, 1000 / 117.84),
        gpus={"MTL0": Speed(1000 / 5.55, 1000 / 92.15)},
    ),
    Machine(
        what="Mac Pro of 2019, processor alone, Llama 2 7B Q4_0",
        source=_MACS,
        cpu=Speed(1000 / 36.30, 1000 / 58.76),
    ),
    _swept(16),
    _swept(32),
    _swept(40),
)
