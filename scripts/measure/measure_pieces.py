"""Measures what decodes of several tokens and of several texts take, as pieces of prompts do.

    python scripts/measure/measure_pieces.py TARGET.gguf

Prints the milliseconds of n tokens of one text, and of one token of each of n texts, behind 256
tokens each: medians of five. In turn for contexts in which each sequence has cells of its own,
as localspec's have, and in which all share them, as llama-server's do. Leave the machine alone
meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.llama.library import llama_cpp
from localspec.machine import num_usable_cores

_BEFORE, _NUM_TEXTS, _ROUNDS = 256, 4, 5
_SIZES = (1, 8, 16, 24, 32, 64, 128)
Parts = Sequence[tuple[int, int, int]]  # sequence, how many tokens, first position


def seconds(context: object, vocab_size: int, parts: Parts) -> float:
    """Of one decode of random tokens; the last of each part has its logits."""
    number = sum(count for _, count, _ in parts)
    tokens = np.random.default_rng(number).integers(0, vocab_size, number)
    batch = llama_cpp.llama_batch_init(number, 0, 1)
    batch.n_tokens = number
    rows = [(s, first + n, n == count - 1) for s, count, first in parts for n in range(count)]
    for at, (sequence, position, has_logits) in enumerate(rows):
        batch.token[at], batch.pos[at], batch.logits[at] = int(tokens[at]), position, has_logits
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
    started = time.perf_counter()
    status = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_synchronize(context)
    took = time.perf_counter() - started
    llama_cpp.llama_batch_free(batch)
    if status:
        raise SystemExit(f"llama_decode returned {status}")
    return took


def opened(model: object, *, unified: bool) -> object:
    """A context with so many texts in it."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 2048 * _NUM_TEXTS, 512, 512
    params.n_threads = params.n_threads_batch = num_usable_cores()
    params.n_seq_max, params.kv_unified = _NUM_TEXTS, unified
    return llama_cpp.llama_init_from_model(model, params)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    path = parser.parse_args().target
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise SystemExit(f"{path} cannot be loaded")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    sides = {"own cells": opened(model, unified=False), "shared": opened(model, unified=True)}
    works: dict[str, Parts] = {f"{n} tokens": [(0, n, _BEFORE)] for n in _SIZES}
    for n in range(2, _NUM_TEXTS + 1):
        works[f"{n} texts"] = [(sequence, 1, _BEFORE) for sequence in range(n)]
    for context in sides.values():
        for sequence in range(_NUM_TEXTS):
            seconds(context, size, [(sequence, _BEFORE, 0)])
    for what, parts in works.items():
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(_ROUNDS):
            for name, context in sides.items():
                found[name].append(seconds(context, size, parts))
                memory = llama_cpp.llama_get_memory(context)
                for sequence in range(_NUM_TEXTS):
                    llama_cpp.llama_memory_seq_rm(memory, sequence, _BEFORE, -1)
        words = [
            f"{name} {1e3 * statistics.median(each):.0f} ms" for name, each in found.items()
        ]
        print(f"{what}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
