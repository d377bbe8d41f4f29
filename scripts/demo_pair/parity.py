"""Proof that llama.cpp computes what PyTorch trained: equal ids, equal logits."""

from pathlib import Path

import llama_cpp
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .corpus.conversation import conversation_at
from .dataset import HELD_OUT_EVERY, SEED, render
from .model import Llama


def held_out_texts(count: int) -> list[str]:
    """The first `count` held-out conversations, rendered."""
    return [render(conversation_at(SEED, i * HELD_OUT_EVERY)) for i in range(count)]


def open_gguf(path: Path, *, exact: bool = False) -> llama_cpp.Llama:
    """The file, opened on two threads, keeping the logits of every position.

    `exact` keeps the KV cache in float32, so that only the order of sums can differ.
    """
    cache = llama_cpp.GGML_TYPE_F32 if exact else llama_cpp.GGML_TYPE_F16
    return llama_cpp.Llama(
        str(path),
        n_ctx=2048,
        n_batch=2048,
        n_threads=2,
        n_threads_batch=2,
        type_k=cache,
        type_v=cache,
        n_gpu_layers=0,
        logits_all=True,
        verbose=False,
    )


def logits_of(llama: llama_cpp.Llama, ids: list[int]) -> NDArray[np.float32]:
    """Logits (len(ids), vocab) of a text decoded from an empty cache."""
    llama.reset()
    llama.eval(ids)
    return np.array(llama.scores[: len(ids)], dtype=np.float32)


def check_tokens(llama: llama_cpp.Llama, tokenizer: Tokenizer, texts: list[str]) -> int:
    """Number of lines compared; raises at the first line whose ids differ."""
    lines = [line for text in texts for line in (text, *text.split("\n"))]
    for line in lines:
        ours = tokenizer.encode(line).ids
        theirs = llama.tokenize(line.encode(), add_bos=False, special=True)
        if ours != theirs:
            raise ValueError(f"ids differ for {line!r}: {ours} and {theirs}")
    return len(lines)


def logit_difference(
    llama: llama_cpp.Llama, model: Llama, tokenizer: Tokenizer, texts: list[str]
) -> tuple[float, float]:
    """Largest difference of a logit, and the share of positions with the same best token."""
    worst, same, total = 0.0, 0, 0
    for text in texts:
        ids = tokenizer.encode(text).ids[:1024]
        theirs = logits_of(llama, ids)
        with torch.no_grad():
            ours = model(torch.tensor([ids]))[0].numpy()
        worst = max(worst, float(np.abs(ours - theirs).max()))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        total += len(ids)
    return worst, same / total
