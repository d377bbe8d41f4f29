"""Engines to be broken: tiny files of every kind of cache, with everything that may draft.

Made by the tests' makers, in seconds. `SMOLLM` is a real one, if the folder that
LOCALSPEC_REAL_MODELS names has it.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from block_head_maker import BlockHead, write_block_head
from exact_files import requantised
from head_maker import write_head_model
from hybrid_maker import write_hybrid
from medusa_file import HeadWeights, write_medusa
from other_tokenizer import write_renumbered
from vision_maker import write_vision_pair

import localspec
from gguf_maker import write_random_model
from localspec.presets.located import locate
from localspec.presets.presets import find_preset

CONTEXT = 256
_MAKING_S = 8.0  # of files, and what is found out about them
WINDOW = 24
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
REAL = "SmolLM2, lookup"
Keywords = dict[str, Any]  # of localspec.load


def demo_file() -> Path:
    """With a tokenizer for all of them."""
    path = locate(find_preset("demo"))["target"]
    assert path is not None
    return path


def _llama(folder: Path, mixing: float, name: str = "llama") -> Path:
    """Of the same seed: the closer the mixing, the more often two agree."""
    path = folder / f"{name}-{mixing}.gguf"
    return write_head_model(path, demo_file(), name, mixing=mixing)


def _alone(write: Callable[[Path], Path], folder: Path) -> Keywords:
    return {"target": write(folder / "target.gguf")}


def _two(write: Callable[..., Path], folder: Path) -> Keywords:
    """Unrelated ones: nearly every draft is refused."""
    return {
        "target": write(folder / "target.gguf", seed=1),
        "draft": write(folder / "draft.gguf", seed=2),
    }


def _pair(folder: Path) -> Keywords:
    return {"target": _llama(folder, 0.02), "draft": _llama(folder, 0.05)}


def _other_tokenizer(folder: Path) -> Keywords:
    target = _demo_like(folder / "target.gguf", 1)
    draft = write_renumbered(folder / "other.gguf", _demo_like(folder / "as-it.gguf", 1))
    return {"target": target, "draft": draft}


def _demo_like(path: Path, seed: int) -> Path:
    return write_random_model(path, demo_file(), seed=seed, context_length=2 * CONTEXT)


def _eagle(folder: Path) -> Keywords:
    head = write_head_model(folder / "head.gguf", demo_file(), "llama", part="head")
    return {"target": _llama(folder, 0.02), "head": head, "proposer": "head"}


def _dflash(made: BlockHead, architecture: str, folder: Path) -> Keywords:
    target = _llama(folder, 0.02, architecture)
    head = write_block_head(folder / "head.gguf", target, made)
    return {"target": target, "head": head, "proposer": "head"}


def _medusa(folder: Path) -> Keywords:
    target = _llama(folder, 0.02)
    output = next(
        tensor.data.astype(np.float32)
        for tensor in gguf.GGUFReader(target).tensors
        if tensor.name == "output.weight"
    )
    random, width = np.random.default_rng(3), output.shape[1]
    heads = [
        HeadWeights(
            [
                (
                    random.normal(0, 0.05, (width, width)).astype(np.float32),
                    np.zeros(width, dtype=np.float32),
                )
            ],
            output,
        )
        for _ in range(3)
    ]
    write_medusa(folder / "medusa.gguf", target, heads)
    return {"target": target, "head": folder / "medusa.gguf", "proposer": "head"}


def _mtp(architecture: str, folder: Path) -> Keywords:
    return {"target": _llama(folder, 0.02, architecture), "proposer": "head"}


def _assistant(folder: Path) -> Keywords:
    head = write_head_model(folder / "head.gguf", demo_file(), "gemma4", part="head")
    return {"target": _llama(folder, 0.02, "gemma4"), "head": head, "proposer": "head"}


def _windowed(path: Path, seed: int = 0) -> Path:
    return write_random_model(
        path,
        demo_file(),
        architecture="gemma3",
        num_layers=3,
        context_length=2 * CONTEXT,
        seed=seed,
        extra={"gemma3.attention.sliding_window": WINDOW},
    )


def _mamba(path: Path, seed: int = 0) -> Path:
    return write_random_model(
        path, demo_file(), architecture="mamba", context_length=2 * CONTEXT, seed=seed
    )


def _hybrid(architecture: str, path: Path, seed: int = 0) -> Path:
    return write_hybrid(path, demo_file(), architecture, seed=seed)


def _seeing(folder: Path) -> Keywords:
    target, mmproj = write_vision_pair(folder, "gemma3", context_length=2 * CONTEXT)
    return {"target": target, "mmproj": mmproj}


def _real(folder: Path) -> Keywords:
    return {"target": Path(os.environ["LOCALSPEC_REAL_MODELS"]) / SMOLLM}


KINDS: dict[str, Callable[[Path], Keywords]] = {
    "attention, lookup": functools.partial(_alone, functools.partial(_demo_like, seed=0)),
    "attention, a draft model": _pair,
    "attention, a draft of another tokenizer": _other_tokenizer,
    "attention, an EAGLE-3 head": _eagle,
    "attention, a DFlash head": functools.partial(_dflash, BlockHead(), "qwen3"),
    "attention, a DFlash2 head": functools.partial(_dflash, BlockHead("dflash2"), "qwen3"),
    "attention, Medusa heads": _medusa,
    "attention, pictures": _seeing,
    "a sliding window, a draft model": functools.partial(_two, _windowed),
    "a sliding window, an assistant": _assistant,
    "a sliding window, MTP heads": functools.partial(_mtp, "step35"),
    "recurrent, a draft model": functools.partial(_two, _mamba),
    "hybrid, an MTP head": functools.partial(_mtp, "qwen35"),
    "hybrid, a draft model": functools.partial(_two, functools.partial(_hybrid, "nemotron_h")),
    "hybrid of short convolutions, lookup": functools.partial(
        _alone, functools.partial(_hybrid, "lfm2")
    ),
    "hybrid without snapshots, lookup": functools.partial(
        _alone, functools.partial(_hybrid, "granitehybrid")
    ),
    REAL: _real,
}


def kinds_here(seconds: float, seed: int) -> list[str]:
    """The names of those that can be made here; of little time only some, by the seed."""
    folder = os.environ.get("LOCALSPEC_REAL_MODELS", "")
    has_real = bool(folder) and (Path(folder) / SMOLLM).exists()
    names = [name for name in KINDS if has_real or name != REAL]
    count = int(min(max(seconds / _MAKING_S, 1), len(names)))
    drawn = random.Random(seed).sample(names, count)
    return [name for name in names if name in drawn]


def _exact(path: Path, out: Path) -> Path:
    """In Q8_0, whose kernels compute each row alike in decodes of any size."""
    return requantised(path, out, llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0)


def made(name: str, folder: Path) -> Keywords:
    """An engine of that kind, its files in an empty folder."""
    keywords = KINDS[name](folder)
    if name == REAL:
        return keywords
    return keywords | {"target": _exact(keywords["target"], folder / "exact.gguf")}


def load_kind(keywords: Keywords, **more: Any) -> localspec.Engine:
    """Exact to the bit, so that any text may be compared with another engine's."""
    usual: Keywords = {"context_length": CONTEXT, "num_threads": 1, "exact": True}
    return localspec.load(**usual | keywords | more)


def target_alone(keywords: Keywords) -> Keywords:
    """Without whatever drafts."""
    kept = {name: value for name, value in keywords.items() if name in ("target", "mmproj")}
    return kept | {"proposer": "none", "draft_tokens": 0, "memory": False}
